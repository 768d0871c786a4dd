package exactlyonce.write;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/** Named points at which a crash test stops a process; see exactly_once/failpoints.py, whose files these are. */
final class Failpoints {
    private static final String FOLDER = System.getenv("EXACTLY_ONCE_FAILPOINTS");

    private Failpoints() {}

    /** Fires the point {@code name} if a test armed it; nothing unless a test is running. */
    static void reach(String name) {
        if (FOLDER == null) return;
        try {
            fire(Path.of(FOLDER), name);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static void fire(Path folder, String name) throws IOException, InterruptedException {
        long pid = ProcessHandle.current().pid(),
                thread = Thread.currentThread().getId();
        // A name of each thread's own: a second thread's move would overwrite, or miss, the first one's file.
        Path mine = folder.resolve("." + name + "." + pid + "." + thread);
        Path reached = folder.resolve(name + ".reached");
        try {
            Files.move(folder.resolve(name), mine);
        } catch (NoSuchFileException e) {
            return;
        }
        String[] action = Files.readString(mine).strip().split(" ");
        Files.writeString(mine, String.valueOf(pid));
        Files.move(mine, reached, StandardCopyOption.REPLACE_EXISTING); // as Python does it
        switch (action[0]) {
            case "raise" -> throw new IllegalStateException("failpoint " + name);
            case "exit" -> Runtime.getRuntime().halt(17);
            case "wait" -> {
                while (Files.exists(reached)) Thread.sleep(20);
            }
            default ->
                Thread.sleep(action[0].equals("sleep") ? (long) (Double.parseDouble(action[1]) * 1000) : 3_600_000);
        }
    }
}
