import java.lang.reflect.Field;
import java.lang.reflect.Modifier;

/** Prints class, key and default of every setting of the named classes, one a line, with tabs between. */
public class RecordSettings {
    public static void main(String[] classes) throws Exception {
        for (String name : classes) {
            Class<?> kind;
            try {
                kind = Class.forName(name);
            } catch (ClassNotFoundException elsewhere) {
                continue;
            }
            boolean tls = kind.getSimpleName().equals("TlsSystemConfig");
            Object made = tls ? null : kind.getDeclaredConstructor().newInstance();
            for (Field field : kind.getDeclaredFields()) {
                // Of TLS the system properties are constants, and their values static fields of another name.
                boolean key = tls ? field.getType() == String.class && Modifier.isFinal(field.getModifiers())
                    : !Modifier.isStatic(field.getModifiers()) && !field.getName().startsWith("this");
                if (key) {
                    field.setAccessible(true);
                    String value = String.valueOf(field.get(made));
                    System.out.println(kind.getSimpleName() + "\t" + (tls ? value + "\t" + tlsDefault(kind, value) : field.getName() + "\t" + value));
                }
            }
        }
    }

    /** tls.server.keyPath is tlsServerKeyPath, tls.server.mode is tlsMode. */
    private static Object tlsDefault(Class<?> kind, String key) throws Exception {
        String wanted = key.equals("tls.server.mode") ? "tlsmode" : key.replace(".", "").toLowerCase();
        for (Field field : kind.getDeclaredFields()) {
            if (field.getName().toLowerCase().equals(wanted)) {
                Object value = field.get(null);
                return value instanceof Enum ? ((Enum<?>) value).name().toLowerCase() : value;
            }
        }
        throw new IllegalStateException("no value of " + key);
    }
}
