"""Texts whose grammar is another's, as people write them, with what Java's own classes read in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

from exactly_once.sparkenv.jars import broker_classpath
from testkit.java import running_java, sparks_jars

_M = "org.apache.kafka.common.security.plain.PlainLoginModule"
_O = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_UP = {"username": "u", "password": "p"}

#: A login, and its options; None where Kafka's clients refuse the text.
JAAS: dict[str, dict[str, str] | None] = {
    f'{_M} required username="u" password="p";': _UP,
    f"{_M} required username='u' password='p';": _UP,
    f"{_M} required username=u password=p;": _UP,
    f"{_M} required username='u' password=\"p\";": _UP,
    f'{_M} required\n  username="u"\r\n\tpassword="p" \n;\n': _UP,
    f"  {_M}   required username = 'u'  password\n=\n'p' ;": _UP,
    f"{_M} required /* console */ username='u' // the user\n password='p';": _UP,
    f"{_M} required / a comment, too\n username=u password=p;": _UP,
    f"{_M} required /*/ username=no */ username=u password=p;": _UP,
    f'{_M} required username="u" password="p\\0431";': {"username": "u", "password": "p#1"},
    f'{_M} required username="u" password="\\1012\\47\\400";': {"username": "u", "password": "A2' 0"},
    f'{_M} required username="u" password="a\\tb\\nc\\rd\\fe\\ag\\bh\\vi";': {
        "username": "u",
        "password": "a\tb\nc\rd\fe\ag\bh\vi",
    },
    f'{_M} required username="u" password="\\"\\\\\\\'\\q\\9";': {"username": "u", "password": "\"\\'q9"},
    f'{_M} required username=\'"u"\' password="it\'s";': {"username": '"u"', "password": "it's"},
    f"{_M} required username='u' password='a;b=c // d /* e';": {"username": "u", "password": "a;b=c // d /* e"},
    f"{_M} required username='prüfung' password='\U0001f600ж';": {"username": "prüfung", "password": "\U0001f600ж"},
    f"{_M} required username=prüfung password=a-b_c.d$e1;": {"username": "prüfung", "password": "a-b_c.d$e1"},
    f"{_M} REQUIRED username=u password=p;": _UP,
    f"{_M} optional username=u password=p;": _UP,
    f'"{_M}" "required" "username"="u" \'password\'="p";': _UP,
    f'{_M} required username="u" password="";': {"username": "u", "password": ""},
    f"{_M} required username=a username=u password=p;": _UP,
    f"{_M} required user='u' pass='p' debug=true;": {"user": "u", "pass": "p", "debug": "true"},
    f"{_M} required;": {},
    f"{_M} required username=u password=p; // the end": _UP,
    f"{_M} required username=u /* never closed password=p;": None,
    f"kafkashaded.{_M} required username='u' password='p';": _UP,
    "org.apache.kafka.common.security.scram.ScramLoginModule required username='u' password='p';": _UP,
    f"{_O} required clientId='c' clientSecret=\"s\\\\\" scope=kafka extension_logicalCluster='lkc-1';": {
        "clientId": "c",
        "clientSecret": "s\\",
        "scope": "kafka",
        "extension_logicalCluster": "lkc-1",
    },
    f"{_O} required oauth.client.id=c oauth.refresh-ms='60';": {"oauth.client.id": "c", "oauth.refresh-ms": "60"},
    f"{_M} required username=u password=p": None,
    f"{_M} required username=u password=1p;": None,
    f"{_M} required username=u password=-p;": None,
    f"{_M} required username=u password=p#1;": None,
    f"{_M} required username=u password=p/1;": None,
    f"{_M} required username=u password;": None,
    f"{_M} required username=u password=;": None,
    f"{_M} required username='u password='p';": None,
    f'{_M} required username="u" password="p\n";': None,
    f"{_M} username=u password=p;": None,
    f"{_M} required 1.2.3=x username=u password=p;": None,
    f"KafkaClient {{ {_M} required username=u password=p; }};": None,
    f"{_M} required username=u password=p; {_M} required username=u password=p;": None,
    f"{_M} required username=u password=p;;": None,
    "": None,
    "// nothing": None,
    _M: None,
}

#: bootstrap.servers, and hosts with ports; None where a client refuses the text.
SERVERS: dict[str, list[tuple[str, int]] | None] = {
    "h:9092": [("h", 9092)],
    "h:1,g:2": [("h", 1), ("g", 2)],
    " h:1 , g:2\t,\n i:3 ": [("h", 1), ("g", 2), ("i", 3)],
    "h:1,,g:2": [("h", 1), ("g", 2)],
    "h:1,": [("h", 1)],
    ", ,h:1 , ": [("h", 1)],
    "PLAINTEXT://h:9092": [("h", 9092)],
    "SASL_SSL://h:9092, SASL_SSL://g.example.com:9093": [("h", 9092), ("g.example.com", 9093)],
    "sasl_ssl://h:9092": [("h", 9092)],
    "EXTERNAL-1://h:9092": [("h", 9092)],
    "kafka://h:9092": [("h", 9092)],
    "://h:9092": [("h", 9092)],
    "[::1]:9092": [("::1", 9092)],
    "::1:9092": [("::1", 9092)],
    "PLAINTEXT://[2001:db8::7]:9092": [("2001:db8::7", 9092)],
    "[fe80::1%eth0]:9092": [("fe80::1%eth0", 9092)],
    "SSL://[::1]:1,h:2": [("::1", 1), ("h", 2)],
    "127.0.0.1:9092": [("127.0.0.1", 9092)],
    "b-1.my_cluster.c2.kafka.eu-west-1.amazonaws.com:9098": [("b-1.my_cluster.c2.kafka.eu-west-1.amazonaws.com", 9098)],
    "h.:9092": [("h.", 9092)],
    "h:09092": [("h", 9092)],
    "h:65535": [("h", 65535)],
    "SASL_SSL:h:9092": [("SASL_SSL:h", 9092)],
    "h:65536": None,
    "h": None,
    "h:": None,
    "h:nine": None,
    ":9092": None,
    "[::1]": None,
    "SASL_SSL://h": None,
    "h:9092/": None,
    "http://h:9092/path": None,
    "//h:9092": None,
    "h:1;g:2": None,
    "h:1 g:2": None,
    "h : 1": None,
    "https://user@h:1": None,
    "ü:9092": None,
    "h:9092\u00a0": None,
    "h:9092,\u2003g:9092": None,
    "'h:9092'": None,
    "${BOOTSTRAP}": None,
    "ssl:h:1": [("ssl:h", 1)],
    "h:00009092\n": [("h", 9092)],
    "tcp://h:9092": [("h", 9092)],
    "ns.servicebus.windows.net:9093": [("ns.servicebus.windows.net", 9093)],
    "": None,
    " , ": None,
}

#: A location, and its scheme, authority and path; None where Hadoop's ``Path`` refuses the text.
LOCATIONS: dict[str, tuple[str, str, str] | None] = {
    "/data/chk": ("", "", "/data/chk"),
    "/data/my chk": ("", "", "/data/my chk"),
    "/data/prüfung/ж": ("", "", "/data/prüfung/ж"),
    "/data/a%20b": ("", "", "/data/a%20b"),
    "/data/100%": ("", "", "/data/100%"),
    "/data/orders#2": ("", "", "/data/orders#2"),
    "/data/a?b=c&d": ("", "", "/data/a?b=c&d"),
    "/data/a+b;c=d": ("", "", "/data/a+b;c=d"),
    "/data/a[1]/{env}/$HOME": ("", "", "/data/a[1]/{env}/$HOME"),
    "/data/a*b/'q'\"": ("", "", "/data/a*b/'q'\""),
    "/data/a\\b": ("", "", "/data/a\\b"),
    "/data/a:b": ("", "", "/data/a:b"),
    "/data/a://b": ("", "", "/data/a:/b"),
    "/data/ ": ("", "", "/data/ "),
    "/data//chk///x/": ("", "", "/data/chk/x"),
    "/data/chk//": ("", "", "/data/chk"),
    "/data/./chk/../x": ("", "", "/data/x"),
    "/../x": ("", "", "/../x"),
    "/": ("", "", "/"),
    "//host/chk": ("", "host", "/chk"),
    "///data/chk": ("", "", "/data/chk"),
    "data/chk": ("", "", "data/chk"),
    "./chk": ("", "", "chk"),
    "../chk": ("", "", "../chk"),
    "~/chk": ("", "", "~/chk"),
    "data/a:b": ("", "", "data/a:b"),
    "file:/data/my chk": ("file", "", "/data/my chk"),
    "file:///data/orders#2": ("file", "", "/data/orders#2"),
    "file:////data/a?b": ("file", "", "/data/a?b"),
    "file:///data/a%20b/": ("file", "", "/data/a%20b"),
    "s3a://bucket/my chk#2?x={y}": ("s3a", "bucket", "/my chk#2?x={y}"),
    "s3n://bucket/a%2Fb": ("s3n", "bucket", "/a%2Fb"),
    "s3://my.bucket_1//chk//": ("s3", "my.bucket_1", "/chk"),
    "s3a://bucket": ("s3a", "bucket", ""),
    "s3a://bucket/": ("s3a", "bucket", "/"),
    "s3a:/chk": ("s3a", "", "/chk"),
    "hdfs://nn:8020/chk#1": ("hdfs", "nn:8020", "/chk#1"),
    "hdfs:///chk": ("hdfs", "", "/chk"),
    "hdfs:/chk": ("hdfs", "", "/chk"),
    "viewfs://cluster/data/a b": ("viewfs", "cluster", "/data/a b"),
    "abfss://box@account.dfs.core.windows.net/chk 1": ("abfss", "box@account.dfs.core.windows.net", "/chk 1"),
    "abfss://box@a.dfs.core.chinacloudapi.cn/chk": ("abfss", "box@a.dfs.core.chinacloudapi.cn", "/chk"),
    "abfss://box@a.dfs.core.usgovcloudapi.net/a%20b": ("abfss", "box@a.dfs.core.usgovcloudapi.net", "/a%20b"),
    "abfss://w@onelake.dfs.fabric.microsoft.com/a.Lakehouse/Files/chk": (
        "abfss",
        "w@onelake.dfs.fabric.microsoft.com",
        "/a.Lakehouse/Files/chk",
    ),
    "gs://bucket/chk": ("gs", "bucket", "/chk"),
    "gs://bucket_1/a%20b#1": ("gs", "bucket_1", "/a%20b#1"),
    "s3://bucket/chk": ("s3", "bucket", "/chk"),
    "s3a://key:pass@bucket/chk": ("s3a", "key:pass@bucket", "/chk"),
    "s3a://arn:aws:s3/chk": ("s3a", "arn:aws:s3", "/chk"),
    "hdfs://nameservice1/chk": ("hdfs", "nameservice1", "/chk"),
    "hdfs://etl@nn:8020/chk?x": ("hdfs", "etl@nn:8020", "/chk?x"),
    "hdfs://[::1]:8020/chk": ("hdfs", "[::1]:8020", "/chk"),
    "webhdfs://nn:9870/chk": ("webhdfs", "nn:9870", "/chk"),
    "viewfs:///data/chk": ("viewfs", "", "/data/chk"),
    "abfs://box@account.dfs.core.windows.net/a#b": ("abfs", "box@account.dfs.core.windows.net", "/a#b"),
    "wasbs://box@account.blob.core.windows.net/chk": ("wasbs", "box@account.blob.core.windows.net", "/chk"),
    "oss://bucket.oss-cn-hangzhou.aliyuncs.com/chk": ("oss", "bucket.oss-cn-hangzhou.aliyuncs.com", "/chk"),
    "dbfs:/Volumes/main/my chk": ("dbfs", "", "/Volumes/main/my chk"),
    "dbfs:///chk": ("dbfs", "", "/chk"),
    "maprfs:///chk": ("maprfs", "", "/chk"),
    "C:/data/chk": ("C", "", "/data/chk"),
    "S3A://Bucket/chk": ("S3A", "Bucket", "/chk"),
    "C:\\data\\chk": None,
    "chk:1": None,
    "s3a:chk": None,
    "file:chk": None,
    ":/chk": None,
    "my chk:/x": None,
    "": None,
}

#: The text of a properties file, and its settings; None where Java refuses it.
PROPERTIES: dict[str, dict[str, str] | None] = {
    "a=b": {"a": "b"},
    "a:b": {"a": "b"},
    "a b": {"a": "b"},
    "a\tb": {"a": "b"},
    "  a  =  b  ": {"a": "b  "},
    "a = : b": {"a": ": b"},
    "a : = b": {"a": "= b"},
    "a==b": {"a": "=b"},
    "a=b=c:d e": {"a": "b=c:d e"},
    "a": {"a": ""},
    "a=": {"a": ""},
    "a =\nb = c": {"a": "", "b": "c"},
    "=b": {"": "b"},
    "# a=b\n! c=d\n \t# e=f\ng=h": {"g": "h"},
    "a=b # no comment": {"a": "b # no comment"},
    "# no \\\na=b": {"a": "b"},
    "a=b,\\\n    c,\\\r\n\t d": {"a": "b,c,d"},
    "a=b\\\n# c": {"a": "b# c"},
    "a=b\\\n\nc=d": {"a": "b", "c": "d"},
    "a=b\\\\\nc=d": {"a": "b\\", "c": "d"},
    "a=b\\": {"a": "b"},
    "a\\\n b=c": {"ab": "c"},
    "a\\ b\\=c\\:d=e": {"a b=c:d": "e"},
    "a=\\u0070r\\u00fcfung": {"a": "prüfung"},
    "a=\\ud83d\\ude00": {"a": "\U0001f600"},
    "a=\\t\\n\\r\\f\\q\\0": {"a": "\t\n\r\fq0"},
    "a=C:\\temp": {"a": "C:\temp"},
    "a=\\ b": {"a": " b"},
    "a=b\r\n\r\nc=d\re=f": {"a": "b", "c": "d", "e": "f"},
    "a=b\na=c": {"a": "c"},
    "a.b-c_d/e=f": {"a.b-c_d/e": "f"},
    "\n\n  \n": {},
    "": {},
    "a=\\u00zz": None,
    "a=C:\\users": None,
}


@contextmanager
def running() -> Iterator[Any]:
    """Yield a JVM with the clients of the brokers' release, and with Spark's Hadoop."""
    classes = [broker_classpath(), *sparks_jars("hadoop-client", "slf4j-api", "jcl-over-slf4j")]
    with running_java(classes) as java:
        yield java.jvm


def javas_login(jvm: Any, text: str) -> dict[str, str] | None:
    """Return the options that a client reads in a login; None where it refuses the text."""
    kafka = jvm.org.apache.kafka.common
    settings = jvm.java.util.HashMap()
    settings.put("sasl.jaas.config", kafka.config.types.Password(text))
    try:
        (entry,) = kafka.security.JaasContext.loadClientContext(settings).configurationEntries()
    except Py4JJavaError:
        return None
    return dict(entry.getOptions())


def javas_servers(jvm: Any, text: str) -> list[tuple[str, int]] | None:
    """Return hosts and ports that a client reads in bootstrap.servers; None where it refuses the text, or takes no host
    for this machine. Leaves out empty entries, as clients before 4.1 do (later ones refuse them).
    """
    kafka = jvm.org.apache.kafka.common
    kind = getattr(jvm, "org.apache.kafka.common.config.ConfigDef$Type").LIST
    entries = [e for e in kafka.config.ConfigDef.parseType("bootstrap.servers", text, kind) if e]
    hosts = [(kafka.utils.Utils.getHost(e), kafka.utils.Utils.getPort(e)) for e in entries]
    whole = all(host and port is not None and port < 1 << 16 for host, port in hosts)
    return hosts if hosts and whole else None


def javas_location(jvm: Any, text: str) -> tuple[str, str, str] | None:
    """Return scheme, authority and path that Hadoop's ``Path`` reads; None where it refuses the text."""
    try:
        uri = jvm.org.apache.hadoop.fs.Path(text).toUri()
    except Py4JJavaError:
        return None
    return uri.getScheme() or "", uri.getAuthority() or "", uri.getPath()


def javas_properties(jvm: Any, text: str) -> dict[str, str] | None:
    """Return the settings that Java reads in a properties file; None where it refuses the text."""
    settings = jvm.java.util.Properties()
    try:
        settings.load(jvm.java.io.StringReader(text))
    except Py4JJavaError:
        return None
    return dict(settings)
