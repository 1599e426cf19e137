import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.trace.*;
import org.apache.rocketmq.common.message.MessageType;

/** Prints, one a line, hex of what TraceDataEncoder makes of each context, and what its own decoder reads back. */
public class TracePayloads {
    static TraceContext context(TraceType type, long time, String group, TraceBean... beans) {
        TraceContext c = new TraceContext();
        c.setTraceType(type); c.setTimeStamp(time); c.setGroupName(group); c.setRegionId("DefaultRegion");
        c.setRequestId("C0A80001000018B4AAC2" + time % 10000); c.setSuccess(true); c.setCostTime(7);
        c.setTraceBeans(new ArrayList<>(Arrays.asList(beans)));
        return c;
    }
    static TraceBean bean(String topic, String id, String tags, String keys) {
        TraceBean b = new TraceBean();
        b.setTopic(topic); b.setMsgId(id); b.setTags(tags); b.setKeys(keys);
        b.setStoreHost("10.0.0.1:10911"); b.setOffsetMsgId("0A00000100002A9F000000000000" + id.substring(id.length() - 4));
        b.setBodyLength(128); b.setMsgType(MessageType.Normal_Msg);
        return b;
    }
    static void print(String name, TraceContext... contexts) {
        StringBuilder all = new StringBuilder();
        for (TraceContext c : contexts) all.append(TraceDataEncoder.encoderFromContextBean(c).getTransData());
        StringBuilder hex = new StringBuilder();
        for (byte b : all.toString().getBytes(StandardCharsets.UTF_8)) hex.append(String.format("%02x", b));
        StringBuilder read = new StringBuilder("[");
        for (TraceContext c : TraceDataEncoder.decoderFromTraceDataString(all.toString())) {
            for (TraceBean b : c.getTraceBeans()) {
                if (read.length() > 1) read.append(", ");
                read.append("{\"kind\": ").append(q(c.getTraceType().name()))
                    .append(", \"time\": ").append(c.getTimeStamp())
                    .append(", \"region\": ").append(q(c.getRegionId())).append(", \"group\": ").append(q(c.getGroupName()))
                    .append(", \"request_id\": ").append(q(c.getRequestId())).append(", \"cost_ms\": ").append(c.getCostTime())
                    .append(", \"success\": ").append(c.isSuccess()).append(", \"context_code\": ").append(c.getContextCode())
                    .append(", \"topic\": ").append(q(b.getTopic())).append(", \"message_id\": ").append(q(b.getMsgId()))
                    .append(", \"tags\": ").append(q(b.getTags())).append(", \"keys\": ").append(q(b.getKeys()))
                    .append(", \"store_host\": ").append(q(b.getStoreHost())).append(", \"offset_message_id\": ").append(q(b.getOffsetMsgId()))
                    .append(", \"body_size\": ").append(b.getBodyLength()).append(", \"retry_times\": ").append(b.getRetryTimes())
                    .append(", \"type\": ").append(b.getMsgType() == null ? "null" : q(b.getMsgType().name()))
                    .append(", \"transaction_id\": ").append(q(b.getTransactionId()))
                    .append(", \"transaction_state\": ").append(b.getTransactionState() == null ? "null" : q(b.getTransactionState().name()))
                    .append(", \"from_check\": ").append(b.isFromTransactionCheck()).append("}");
            }
        }
        System.out.println("{\"version\": \"" + System.getProperty("v") + "\", \"name\": \"" + name + "\", \"payload\": \"" + hex + "\", \"read\": " + read.append("]}"));
    }
    static String q(String s) { return s == null ? "null" : "\"" + s.replace("\\", "\\\\").replace("\"", "\\\"") + "\""; }
    public static void main(String[] a) {
        long t = 1700000000000L;
        TraceBean plain = bean("orders", "7F0000010F1218B4AAC20000AAAA0001", "paid", "order-1 customer-9");
        print("one send", context(TraceType.Pub, t, "sellers", plain));
        TraceBean bare = bean("orders", "7F0000010F1218B4AAC20000AAAA0002", null, null);
        TraceContext notStored = context(TraceType.Pub, t + 1, "sellers", bare); notStored.setSuccess(false); notStored.setCostTime(3001);
        print("no tags and keys, not stored", notStored);
        print("a batch", context(TraceType.Pub, t + 2, "sellers", bean("orders", "7F0000010F1218B4AAC20000AAAA0003,7F0000010F1218B4AAC20000AAAA0004", "paid", "\u00fcber \u8ba2\u5355")));
        TraceBean half = bean("payments", "7F0000010F1218B4AAC20000AAAA0005", "paid", "p-5"); half.setMsgType(MessageType.Trans_Msg_Half);
        TraceBean end = bean("payments", "7F0000010F1218B4AAC20000AAAA0005", "paid", "p-5"); end.setMsgType(MessageType.Trans_msg_Commit);
        end.setTransactionId("7F0000010F1218B4AAC20000AAAA0005"); end.setTransactionState(LocalTransactionState.COMMIT_MESSAGE); end.setFromTransactionCheck(true);
        TraceBean back = bean("payments", "7F0000010F1218B4AAC20000AAAA0006", "paid", "p-6"); back.setMsgType(MessageType.Trans_msg_Commit);
        back.setTransactionId("tx-6"); back.setTransactionState(LocalTransactionState.ROLLBACK_MESSAGE);
        print("a transaction", context(TraceType.Pub, t + 3, "payers", half), context(TraceType.EndTransaction, t + 63, "payers", end), context(TraceType.EndTransaction, t + 64, "payers", back));
        TraceBean delayed = bean("orders", "7F0000010F1218B4AAC20000AAAA0007", "later", ""); delayed.setMsgType(MessageType.Delay_Msg);
        print("delayed", context(TraceType.Pub, t + 4, "sellers", delayed));
        TraceBean retried = bean("orders", "7F0000010F1218B4AAC20000AAAA0002", null, null); retried.setRetryTimes(3);
        TraceContext before = context(TraceType.SubBefore, t + 20, "billing", plain, retried);
        TraceContext after = context(TraceType.SubAfter, t + 29, "billing", plain, retried); after.setRequestId(before.getRequestId()); after.setCostTime(4);
        after.setAccessChannel(AccessChannel.LOCAL);
        TraceContext failed = context(TraceType.SubAfter, t + 30, "billing", plain); failed.setSuccess(false); failed.setContextCode(2); failed.setAccessChannel(AccessChannel.LOCAL);
        print("consumed", before, after);
        print("consumed and failed", failed);
        TraceContext cloud = context(TraceType.SubAfter, t + 31, "billing", plain); cloud.setAccessChannel(AccessChannel.CLOUD); cloud.setContextCode(4); cloud.setSuccess(false);
        print("consumed through the cloud channel", cloud);
        try {
            TraceType recall = TraceType.valueOf("Recall");
            print("recalled", context(recall, t + 40, "sellers", delayed));
        } catch (IllegalArgumentException e) { }
    }
}
