"""Steps for a name server."""

from __future__ import annotations

from differential.requests import binary, create_topic, of_topic, request, with_fields
from differential.side import Answer, Side
from differential.steps_deliveries import HALF
from roquet.wire.calls.registration import RegisterBrokerBody
from roquet.wire.calls.topics import TopicConfig, TopicTable
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command
from roquet.wire.record import body_crc

OLD = 399
"""A client that has not asked for standard JSON by its version."""
ADDRESS = "10.1.2.3:10911"
SLAVE = "10.1.2.4:10911"


def route(topic: str, version: int = 407) -> Command:
    return request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, version=version)


def routes(side: Side) -> None:
    names = side.namesrv
    side.quietly(create_topic("D-route", 3, write=2))
    side.until("route of a new topic", route("D-route"), lambda answer: answer.code == 0, names)
    side.ask("route, binary header", binary(route("D-route")), names)
    side.ask("route, old client", route("D-route", OLD), names)
    side.ask("route, old client that asks for standard JSON", with_fields(route("D-route", OLD), acceptStandardJsonOnly=True), names)
    side.ask("route of the default topic", route("TBW102"), names)
    side.ask("route of an unknown topic", route("D-unknown"), names)
    side.ask("route of an unknown topic, binary header", binary(route("D-unknown")), names)
    side.ask("route without a topic", request(Code.GET_ROUTEINFO_BY_TOPIC), names)
    side.ask("route without a topic, binary header", binary(request(Code.GET_ROUTEINFO_BY_TOPIC)), names)
    side.ask("cluster", request(Code.GET_BROKER_CLUSTER_INFO), names)
    there = ("D-route", "D-deal", "D-one", HALF)  # each broker tells the name server of them in its own time

    def all_there(answer: Answer) -> bool:
        return all(f'"{topic}"'.encode() in answer.body for topic in there)

    side.until("all topics", request(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), all_there, names)
    side.ask("topics of a cluster", request(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}), names)
    side.ask("topics of an unknown cluster", request(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "nowhere"}), names)
    side.ask("system topics", request(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS), names)
    side.ask("unit topics", request(Code.GET_UNIT_TOPIC_LIST), names)
    side.ask("topics with unit subscriptions", request(Code.GET_HAS_UNIT_SUB_TOPIC_LIST), names)
    side.ask("topics with unit subscriptions that are no unit topics", request(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST), names)
    side.ask("unknown request", request(9_999), names, silent=True)
    side.ask("unknown request, binary header", binary(request(9_999)), names, silent=True)
    side.ask("a broker's request", of_topic(Code.GET_TOPIC_STATS_INFO, "D-route"), names, silent=True)


def values(side: Side) -> None:
    names = side.namesrv

    def kv(code: int, key: str | None, value: str | None = None, namespace: str | None = "D-space") -> Command:
        return request(code, {"namespace": namespace, "key": key, "value": value})

    side.ask("get before put", kv(Code.GET_KV_CONFIG, "a"), names)
    side.ask("put", kv(Code.PUT_KV_CONFIG, "a", "1"), names)
    side.ask("put, not ASCII, binary header", binary(kv(Code.PUT_KV_CONFIG, "b", "zwei ü")), names)
    side.ask("put over", kv(Code.PUT_KV_CONFIG, "a", "2"), names)
    side.ask("get", kv(Code.GET_KV_CONFIG, "a"), names)
    side.ask("get, binary header", binary(kv(Code.GET_KV_CONFIG, "b")), names)
    side.ask("list", request(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "D-space"}), names)
    side.ask("list of an unknown namespace", request(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "nowhere"}), names)
    side.ask("delete", kv(Code.DELETE_KV_CONFIG, "a"), names)
    side.ask("delete again", kv(Code.DELETE_KV_CONFIG, "a"), names)
    side.ask("delete in an unknown namespace", kv(Code.DELETE_KV_CONFIG, "a", namespace="nowhere"), names)
    side.ask("get after delete", kv(Code.GET_KV_CONFIG, "a"), names)
    side.ask("put without a value", kv(Code.PUT_KV_CONFIG, "a"), names)
    side.ask("put without a key", kv(Code.PUT_KV_CONFIG, None, "1"), names)
    side.ask("put without a namespace", kv(Code.PUT_KV_CONFIG, "a", "1", None), names)
    side.ask("list of nothing", request(Code.GET_KVLIST_BY_NAMESPACE), names)
    side.ask("settings", request(Code.GET_NAMESRV_CONFIG), names, shape=["body"])
    side.ask("a setting that is not to be changed", request(Code.UPDATE_NAMESRV_CONFIG, None, b"kvConfigPath=/tmp/elsewhere\n"), names)
    side.ask("settings changed by nothing", request(Code.UPDATE_NAMESRV_CONFIG), names)


def registrations(side: Side) -> None:
    """Brokers that do not exist, announced by hand."""
    names = side.namesrv
    line = side.line("made-up broker", side.namesrv_address)
    slave = side.line("made-up slave", side.namesrv_address)
    version = DataVersion(1_700_000_000_000, 7)

    def body(topics: dict[str, int], version: DataVersion = version) -> RegisterBrokerBody:
        table = {name: TopicConfig(name, queues, queues, 6) for name, queues in topics.items()}
        return RegisterBrokerBody(TopicTable(table, version))

    def register(data: bytes, address: str = ADDRESS, broker_id: int = 0, **more: object) -> Command:
        fields: dict[str, object] = {
            "brokerName": "made-up",
            "brokerAddr": address,
            "clusterName": "D-cluster",
            "haServerAddr": f"{address}2",
            "brokerId": broker_id,
            "compressed": False,
            "bodyCrc32": body_crc(data),
            **more,
        }
        return request(Code.REGISTER_BROKER, fields, data)

    plain = body({"D-made": 4, "D-other": 2}).encode()
    side.ask("register", register(plain), line)
    side.ask("register with a wrong checksum", register(plain, bodyCrc32=12345), line)
    side.ask("register without a checksum", register(plain, bodyCrc32=0), line)
    side.ask("register without an id", register(plain, brokerId=None), line)
    side.ask("register with a body that is no JSON", register(b"{nothing"), line)
    bodiless = side.line("bodiless broker", side.namesrv_address)
    side.ask("register without a body", register(b"", bodyCrc32=0, brokerName="bodiless", brokerAddr="10.9.9.9:1"), bodiless)
    side.close_line("bodiless broker")
    side.ask("route of its topic", route("D-made"), names)
    side.ask("route of its topic, old client", route("D-made", OLD), names)
    side.ask("register a slave", register(plain, SLAVE, 1), slave)
    side.ask("register a slave, binary header", binary(register(plain, SLAVE, 1)), slave)
    side.ask("route with a slave", route("D-made"), names)
    side.ask("route with a slave, old client", route("D-made", OLD), names)
    side.ask("cluster with both", request(Code.GET_BROKER_CLUSTER_INFO), names)
    side.ask("topics of its cluster", request(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "D-cluster"}), names)
    more = body({"D-made": 8, "D-third": 1}, DataVersion(1_700_000_000_001, 8)).encode_compressed()
    side.ask("register, compressed", register(more, compressed=True), line)
    side.ask("route after compressed", route("D-third"), names)
    side.ask("route after more queues", route("D-made"), names)
    side.ask("a topic that is no longer announced", route("D-other"), names)

    def data_version(version: DataVersion, name: str = "made-up", address: str = ADDRESS) -> Command:
        fields: dict[str, object] = {"brokerName": name, "brokerAddr": address, "clusterName": "D-cluster", "brokerId": 0}
        return request(Code.QUERY_DATA_VERSION, fields, version)

    side.ask("same data version", data_version(DataVersion(1_700_000_000_001, 8)), line)
    side.ask("other data version", data_version(version), line)
    side.ask("data version of an unknown broker", data_version(version, "unheard", "10.9.9.8:1"), line)
    side.ask("data version without a broker", with_fields(data_version(version), brokerName=None), line)

    side.ask("wipe write permission", request(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "made-up"}), names)
    side.ask("route after wipe", route("D-made"), names)
    side.ask("wipe again", request(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "made-up"}), names)
    side.ask("add write permission", request(Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "made-up"}), names)
    side.ask("route after add", route("D-made"), names)
    side.ask("wipe an unknown broker", request(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "unheard"}), names)
    side.ask("add to an unknown broker", request(Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "unheard"}), names)

    side.ask("delete a topic", request(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "D-third"}), names)
    side.ask("route after delete", route("D-third"), names)
    side.ask("delete an unknown topic", request(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "D-nothing"}), names)

    side.quietly(request(Code.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "D-made", "value": "made-up:8"}), names)
    side.ask("register with ordered topics known", register(plain), line)
    side.ask("route with ordered topics known", route("D-made"), names)
    side.quietly(request(Code.DELETE_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "D-made"}), names)

    old = TopicTable({"D-old": TopicConfig("D-old", 1, 1)}, DataVersion(1_700_000_000_002, 9)).encode()
    ancient = register(old, "10.1.2.5:1", 0, brokerName="ancient", bodyCrc32=None, compressed=None)
    ancient.version = 36
    ancient_line = side.line("ancient broker", side.namesrv_address)
    side.ask("register as before 3.0.11", ancient, ancient_line)
    side.ask("route of a broker before 3.0.11", route("D-old"), names)
    side.close_line("ancient broker")

    def unregister(address: str, broker_id: int, name: str = "made-up") -> Command:
        fields: dict[str, object] = {"brokerName": name, "brokerAddr": address, "clusterName": "D-cluster", "brokerId": broker_id}
        return request(Code.UNREGISTER_BROKER, fields)

    side.ask("unregister the slave", unregister(SLAVE, 1), slave)
    side.ask("route without the slave", route("D-made"), names)
    side.ask("unregister nobody", unregister("10.9.9.8:1", 0, "unheard"), names)
    side.quietly(register(plain, SLAVE, 1), slave)
    side.close_line("made-up broker")

    def master_gone(answer: Answer) -> bool:
        return ADDRESS.encode() not in answer.body

    side.until("route after the master's connection closed", route("D-made"), master_gone, names)
    side.close_line("made-up slave")
    side.until("route after both connections closed", route("D-made"), lambda answer: answer.code == 17, names)
    side.ask("cluster after all closed", request(Code.GET_BROKER_CLUSTER_INFO), names)
    side.ask("topics of the cluster after all closed", request(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "D-cluster"}), names)
