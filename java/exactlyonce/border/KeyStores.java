package exactlyonce.border;

import exactlyonce.SinkException;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.Key;
import java.security.KeyStore;
import java.security.KeyStoreException;
import java.security.UnrecoverableKeyException;
import java.security.cert.Certificate;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * Java key stores as PEM, which the driver's clients in Python read. Asked in Spark's JVM, and in one of its own where Python has none
 * ({@link #main}): so it needs the JDK alone.
 */
public final class KeyStores {
    private static final String TRUST = "kafka.ssl.truststore.", IDENTITY = "kafka.ssl.keystore.";
    private static final String KEY_PASSWORD = "kafka.ssl.key.password";

    private static final int LINE = 64;

    private KeyStores() {}

    /** Returns what {@link #asPem} does; null where {@code options} name no Java key store. */
    public static Map<String, String> pem(Map<String, String> options) {
        Map<String, String> found = asPem(options);
        return found.isEmpty() ? null : found;
    }

    /**
     * Returns what the Java key stores hold that {@code options} name: trust, chain and key, as far as there are. Of one that cannot be used,
     * what is wrong and the way out: Python refuses it in turn with the other options.
     */
    static Map<String, String> asPem(Map<?, ?> options) {
        Map<String, String> given = new TreeMap<>(String.CASE_INSENSITIVE_ORDER), found = new HashMap<>();
        options.forEach((name, value) -> given.put(String.valueOf(name), String.valueOf(value)));
        try {
            if (isJavas(given, TRUST)) found.put("trust", trusted(given));
            if (isJavas(given, IDENTITY)) found.putAll(identity(given));
            return found;
        } catch (SinkException e) {
            return Map.of("what", e.what(), "way_out", e.wayOut());
        }
    }

    /** Reads options, a line each: a name, and its value in Base64. Prints what {@link #asPem} returns in the same form. */
    public static void main(String[] arguments) throws IOException {
        Map<String, String> options = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int space = line.indexOf(' ');
            byte[] value = Base64.getDecoder().decode(line.substring(space + 1));
            options.put(line.substring(0, space), new String(value, StandardCharsets.UTF_8));
        }
        asPem(options)
                .forEach((name, text) -> System.out.println(
                        name + " " + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8))));
    }

    private static boolean isJavas(Map<String, String> given, String store) {
        String protocol = given.getOrDefault("kafka.security.protocol", "").toUpperCase(Locale.ROOT);
        String location = given.getOrDefault(store + "location", "");
        return protocol.endsWith("SSL")
                && !location.isEmpty()
                && !type(given, store).equalsIgnoreCase("PEM");
    }

    private static String type(Map<String, String> given, String store) {
        return given.getOrDefault(store + "type", "JKS");
    }

    /** Returns the certificates that Java's clients trust with this store: also the first one of each chain. */
    private static String trusted(Map<String, String> given) {
        KeyStore store = load(given, TRUST);
        try {
            Set<Certificate> found = new LinkedHashSet<>();
            for (String alias : Collections.list(store.aliases())) found.add(store.getCertificate(alias));
            found.remove(null); // of a secret key
            if (found.isEmpty())
                throw unusable(
                        named(given, TRUST) + " holds no certificate to trust",
                        "Import one: keytool -importcert -file ca.pem -keystore " + given.get(TRUST + "location"));
            return pem("CERTIFICATE", found);
        } catch (GeneralSecurityException e) {
            throw unreadable(given, TRUST, e);
        }
    }

    /** Returns the only private key of the store, and its certificates. */
    private static Map<String, String> identity(Map<String, String> given) {
        String password = given.get(IDENTITY + "password");
        if (password == null)
            throw unusable(
                    IDENTITY + "password is missing, without which Java reads no key store",
                    "Set " + IDENTITY + "password");
        KeyStore store = load(given, IDENTITY);
        String its = given.containsKey(KEY_PASSWORD) ? KEY_PASSWORD : IDENTITY + "password";
        try {
            String alias = onlyKey(store, named(given, IDENTITY));
            Key key = store.getKey(alias, given.get(its).toCharArray());
            if (key.getEncoded() == null)
                throw unusable(
                        named(given, IDENTITY) + " does not hand out its private key, which the driver's Python needs",
                        "Use a store whose private key can be exported");
            List<Certificate> chain = List.of(store.getCertificateChain(alias));
            return Map.of("chain", pem("CERTIFICATE", chain), "key", pem("PRIVATE KEY", key.getEncoded()));
        } catch (UnrecoverableKeyException e) {
            throw unusable(
                    its + " is not the password of the private key in " + given.get(IDENTITY + "location"),
                    "Correct " + (its.equals(KEY_PASSWORD) ? its : its + ", or set " + KEY_PASSWORD));
        } catch (GeneralSecurityException e) {
            throw unreadable(given, IDENTITY, e);
        }
    }

    private static String onlyKey(KeyStore store, String named) throws KeyStoreException {
        List<String> found = new ArrayList<>();
        for (String alias : Collections.list(store.aliases()))
            if (store.entryInstanceOf(alias, KeyStore.PrivateKeyEntry.class)) found.add(alias);
        if (found.isEmpty())
            throw unusable(named + " holds no private key", "Name the key store that has the client's private key");
        if (found.size() > 1)
            throw unusable(
                    named + " holds several private keys (" + String.join(", ", found)
                            + "), and the driver's Python cannot choose one by what the brokers trust",
                    "Use a key store with one: keytool -importkeystore -srcalias " + found.get(0));
        return found.get(0);
    }

    private static KeyStore load(Map<String, String> given, String store) {
        String password = given.get(store + "password"), type = type(given, store);
        try {
            byte[] content = Files.readAllBytes(Path.of(given.get(store + "location")));
            KeyStore found = KeyStore.getInstance(type);
            // as Kafka's client: without a password a trust store is read, and not checked
            found.load(new ByteArrayInputStream(content), password == null ? null : password.toCharArray());
            return found;
        } catch (NoSuchFileException | InvalidPathException e) {
            throw unusable(
                    named(given, store) + " is not there",
                    "Correct " + store + "location, or put the file there on the driver and the executors");
        } catch (KeyStoreException e) {
            throw unusable(
                    store + "type=" + type + " is not a type of key store that this Java knows",
                    "Set " + store + "type to JKS, PKCS12 or PEM");
        } catch (IOException e) {
            if (!(e.getCause() instanceof UnrecoverableKeyException)) throw unreadable(given, store, e);
            throw unusable(
                    store + "password is not the password of " + given.get(store + "location"),
                    "Correct " + store + "password");
        } catch (GeneralSecurityException e) {
            throw unreadable(given, store, e);
        }
    }

    private static SinkException unreadable(Map<String, String> given, String store, Exception e) {
        return unusable(
                named(given, store) + " cannot be read as " + type(given, store) + " (" + e + ")",
                "Correct " + store + "location, or set " + store + "type to what the file is: JKS, PKCS12 or PEM");
    }

    private static String named(Map<String, String> given, String store) {
        return store + "location=" + given.get(store + "location");
    }

    private static SinkException unusable(String what, String wayOut) {
        return new SinkException("EO-OPTION", what, wayOut);
    }

    private static String pem(String kind, Collection<Certificate> certificates) throws GeneralSecurityException {
        StringBuilder found = new StringBuilder();
        for (Certificate one : certificates) found.append(pem(kind, one.getEncoded()));
        return found.toString();
    }

    private static String pem(String kind, byte[] der) {
        String body = Base64.getMimeEncoder(LINE, new byte[] {'\n'}).encodeToString(der);
        return "-----BEGIN " + kind + "-----\n" + body + "\n-----END " + kind + "-----\n";
    }
}
