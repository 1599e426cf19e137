import java.util.concurrent.TimeUnit;

/** Prints one line a check, `ok NAME` or `FAIL NAME: why`, and holds what the checks themselves are written with. */
final class Report {
    private Report() {
    }

    interface Body {
        void run() throws Exception;
    }

    interface Question {
        boolean holds() throws Exception;
    }

    static void check(String name, Body body) {
        String line;
        try {
            body.run();
            line = "ok " + name;
        } catch (Throwable failure) {
            line = "FAIL " + name + ": " + reason(failure);
        }
        synchronized (System.out) {
            System.out.println(line);
        }
    }

    private static String reason(Throwable failure) {
        StringBuilder text = new StringBuilder();
        for (Throwable each = failure; each != null; each = each.getCause()) {
            text.append(text.length() == 0 ? "" : " <- ");
            text.append(each instanceof AssertionError ? each.getMessage() : each.toString());
        }
        StackTraceElement[] trace = failure.getStackTrace();
        if (!(failure instanceof AssertionError) && trace.length > 0) {
            text.append(" at ").append(trace[0]);
        }
        return text.toString().replaceAll("\\s+", " ");
    }

    static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void same(String what, Object expected, Object found) {
        if (!java.util.Objects.equals(expected, found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    /** For what must come; a machine may be busy with other things. Only what never comes takes so long. */
    static final int PATIENCE_S = 240;

    /** Returns as soon as the question holds; fails with `what` when it never does. */
    static void await(String what, Question question) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!question.holds()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("after " + PATIENCE_S + " s still not: " + what);
            }
            Thread.sleep(20);
        }
    }
}
