package exactlyonce.border;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.util.RawValue;
import exactlyonce.SinkException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The messages of dev/testkit/border_messages.py as Java makes and reads them, and the files that both sides are held to. */
final class Golden {
    private static final ObjectMapper JSON = new ObjectMapper();

    private static final Map<String, String> OPTIONS = Map.of("sink.id", "orders", "topic", "orders");
    private static final String SCHEMA = "{\"type\":\"struct\",\"fields\":[]}";
    private static final Map<String, String> PEM = Map.of("trust", "a certificate");

    private static final Border.TaskReport EMPTY = new Border.TaskReport(1, false, "e1", Border.Plan.DRAIN, List.of());
    private static final Border.PreparedReport LEAST = new Border.PreparedReport(
            2,
            false,
            "e1",
            Border.Plan.WRITE,
            List.of(),
            "eo:orders:1:2:0.1",
            41,
            0,
            0,
            0,
            "",
            "plain",
            List.of(),
            0,
            List.of());
    private static final Border.PreparedReport PREPARED = new Border.PreparedReport(
            3,
            true,
            "e1",
            Border.Plan.REPLAY,
            List.of("80049561", "80049562"),
            "eo:orders:1:3:1.2",
            1L << 40,
            7,
            5,
            600,
            "00ff",
            "row+timestamp",
            List.of(
                    new Border.PartitionRange("orders", 0, 10, 3, 1_700_000_000_000L),
                    new Border.PartitionRange("orders", 1, -1, 2, null)),
            1,
            List.of("a row is too large", "Make it smaller"));

    private Golden() {}

    /** Prints the name of each file in the folder that is not what this side says, and of each file that it does not know. */
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> made = made();
        try (var files = Files.list(Path.of(arguments[0]))) {
            for (Path file : files.sorted().toList()) {
                String name = file.getFileName().toString().replace(".json", "");
                String text = Files.readString(file);
                Object mine = made.remove(name);
                boolean same = mine instanceof Border.CallAnswer answer
                        ? answer.equals(Border.answer(text))
                        : mine != null && JSON.readTree(Border.write(mine)).equals(JSON.readTree(text));
                if (!same) System.out.println(name);
            }
        }
        made.keySet().forEach(System.out::println);
        refuse(Files.readString(Path.of(arguments[0], "answer-with-a-ticket.json")));
    }

    /** Prints the errors of a ticket without a field, with a wrong one, and with a plan that this jar does not know. */
    private static void refuse(String answer) throws Exception {
        for (String change : List.of("log_end", "timeout_ms=\"many\"", "plan=\"burn\"")) {
            ObjectNode json = (ObjectNode) JSON.readTree(answer);
            ObjectNode ticket = (ObjectNode) json.get("ok");
            String[] words = change.split("=");
            if (words.length == 1) ticket.remove(words[0]);
            else ticket.set(words[0], JSON.readTree(words[1]));
            try {
                Border.answer(json.toString());
            } catch (SinkException e) {
                System.out.println(e.getMessage());
            }
        }
    }

    private static Map<String, Object> made() throws Exception {
        Map<String, Object> made = new LinkedHashMap<>();
        made.put("check-request", new Border.CheckRequest(OPTIONS, true, SCHEMA, PEM, "append", false));
        made.put("check-request-least", new Border.CheckRequest(OPTIONS, false, null, null, null, true));
        Map<String, String> settings = Map.of("spark.speculation", "false");
        List<String> sources = List.of("orders", "returns");
        made.put(
                "plan-request",
                new Border.PlanRequest("r1", OPTIONS, SCHEMA, true, false, "q1", 1L << 33, settings, sources, PEM));
        made.put(
                "plan-request-of-a-write",
                new Border.PlanRequest("w1", OPTIONS, SCHEMA, false, true, "", null, Map.of(), null, null));
        RawValue empty = new RawValue(Border.write(EMPTY)), prepared = new RawValue(Border.write(PREPARED));
        made.put("commit-request", new Border.CommitRequest("r1", Arrays.asList(empty, null, prepared), 1L << 33));
        made.put("abort-request", new Border.AbortRequest("r1", Arrays.asList((RawValue) null), 4));
        made.put("close-request", new Border.CloseRequest("r1"));
        made.put("task-report", EMPTY);
        made.put("prepared-report", PREPARED);
        made.put("prepared-report-least", LEAST);
        made.put("answer", new Border.CallAnswer(null, null));
        Border.EngineError error = new Border.EngineError("EO-FENCED", "EO-FENCED: claim 1 is superseded");
        made.put("answer-with-an-error", new Border.CallAnswer(null, error));
        made.put("answer-with-a-ticket", new Border.CallAnswer(ticket(), null));
        made.put("answer-with-the-least-ticket", new Border.CallAnswer(leastTicket(), null));
        return made;
    }

    private static Border.TaskTicket ticket() throws Exception {
        return new Border.TaskTicket(
                Border.Plan.REPLAY,
                "e2",
                1L << 33,
                "q1",
                Border.Guarantee.EXACTLY_ONCE,
                "orders",
                "eo:orders:3:",
                "eo.orders.commit-log",
                1L << 34,
                900_000,
                630_000,
                "EO-EXPIRING: part {part} after {took_s} s",
                "orders",
                Map.of("key", 1, "value", 4),
                "0000000001",
                "0000000002",
                Map.of(
                        "value",
                        new Border.ColumnEncoding(
                                "AVRO", JSON.readTree("{\"read\":\"long\"}"), JSON.readTree("{\"read\":\"string\"}"))),
                List.of("orders", "orders-*"),
                new DeadLetterTarget("dead", 10, 1_048_588, "header:origin"),
                true,
                List.of(new Border.LostPart(5, "00ff"), new Border.LostPart(6, "ff00")),
                Map.of("bootstrap.servers", "broker:9092", "linger.ms", "5"));
    }

    private static Border.TaskTicket leastTicket() {
        return new Border.TaskTicket(
                Border.Plan.DRAIN,
                "e1",
                0,
                "",
                Border.Guarantee.NONE,
                "orders",
                "eo:orders:0:",
                "eo.orders.commit-log",
                0,
                900_000,
                0,
                "",
                null,
                Map.of("value", 0),
                "",
                "",
                Map.of(),
                List.of(),
                null,
                false,
                List.of(),
                Map.of());
    }
}
