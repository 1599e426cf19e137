import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The keys that all clients sign with: -Dinterop.accessKey and -Dinterop.secretKey; without them nothing is signed. */
final class Keys {
    static final RPCHook HOOK = hook(System.getProperty("interop.accessKey"), System.getProperty("interop.secretKey"));

    private Keys() {
    }

    private static RPCHook hook(String accessKey, String secretKey) {
        return accessKey == null ? null : new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }
}
