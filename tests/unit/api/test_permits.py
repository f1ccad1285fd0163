"""Permits and mounts: how they are written, what a policy covers, and what nobody can permit."""

import ipaddress
from typing import Any

import pytest
from factories import a_policy, a_raw_mount, a_raw_source, a_spec
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from codeexec_api import CodeExecutionSpec, Decision, ExecutionPolicySpec, Grant, Mount, Permit, evaluate
from codeexec_api.permits import NEVER, fault_of, open_up, opening, parse_mount, parse_permit
from codeexec_api.v1alpha1.access import EgressRule
from codeexec_api.v1alpha1.bounds import MAX_LEFT_OUT

RANKS = {Decision.ALLOWED: 0, Decision.NEEDS_APPROVAL: 1, Decision.DENIED: 2}

# Few addresses, so that ranges meet; also such as nobody can permit.
networks = st.builds(
    lambda base, prefix: str(ipaddress.ip_network((base, prefix), strict=False)),
    st.sampled_from(["10.1.2.3", "10.1.2.200", "10.9.0.1", "192.0.2.7", "169.254.169.254", "2001:db8::1"]),
    st.integers(0, 32),
)
labels = st.dictionaries(
    st.sampled_from(["app", "tier", "kubernetes.io/metadata.name"]),
    st.sampled_from(["a", "b-1", ""]),
    min_size=1,
    max_size=3,
)
selectors = labels.map(lambda one: {"matchLabels": one})
ports = st.sampled_from([1, 53, 443, 444, 8443, 65_535])
protocols = st.sampled_from(["TCP", "UDP"])
peers = (
    st.fixed_dictionaries({"cidr": networks})
    | st.fixed_dictionaries({"podSelector": selectors}, optional={"namespaceSelector": selectors})
    | st.fixed_dictionaries({"namespaceSelector": selectors})
)
raw_permits = st.builds(
    lambda peer, port, protocol: peer | {"port": port, "protocol": protocol}, peers, ports, protocols
)
rules = st.builds(
    lambda permit, more: permit | {"endPort": min(65_535, permit["port"] + more)},
    raw_permits,
    st.sampled_from([0, 1, 8000]),
)
raw_sources = st.builds(a_raw_source, st.sampled_from(["data", "other", "a.b"]), config_map=st.booleans())
policies = st.builds(
    lambda egress, more, mounts, further: a_policy(
        egress=egress, mounts=mounts, withApproval={"egress": more, "mounts": further}
    ),
    *(st.lists(one, max_size=3) for one in (rules, rules, raw_sources, raw_sources)),
)


def asking(*permits: Any, mounts: Any = ()) -> CodeExecutionSpec:
    wanted = {"egress": list(permits) or None, "mounts": list(mounts) or None}
    return a_spec(**{name: value for name, value in wanted.items() if value})


def verdict_of(permit: dict[str, Any], policy: ExecutionPolicySpec) -> Decision:
    return evaluate(asking(permit), policy).decision


class TestText:
    @given(raw_permits)
    def test_is_read_as_it_is_written(self, raw: dict[str, Any]) -> None:
        permit = Permit.model_validate(raw)
        assume(not fault_of(permit))
        assert parse_permit(str(permit)) == permit

    @pytest.mark.parametrize(
        ("text", "written"),
        [
            ("10.1.2.3:443", "10.1.2.3/32:443/TCP"),
            ("10.1.0.0/16:53/udp", "10.1.0.0/16:53/UDP"),
            ("[2001:db8::1]:443", "[2001:db8::1/128]:443/TCP"),
            ("[2001:db8::/32]:443/TCP", "[2001:db8::/32]:443/TCP"),
            ("pods{b=2,a=1}:80", "pods{a=1,b=2}:80/TCP"),
            (
                "namespaces{kubernetes.io/metadata.name=data},pods{app=db}:5432",
                "namespaces{kubernetes.io/metadata.name=data},pods{app=db}:5432/TCP",
            ),
        ],
    )
    def test_can_be_shorter(self, text: str, written: str) -> None:
        assert str(parse_permit(text)) == written

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("10.1.2.3", "is not a permit"),
            ("10.1.2.3/32:443/ICMP", "protocol"),
            ("10.1.2.3/32:0", "port"),
            ("10.1.2.3/32:70000", "port"),
            ("10.1.2.3/8:443", "host bits"),
            ("10.1.2.300/32:443", "10.1.2.300"),
            ("api.example.org:443", "can't name hosts"),
            ("*.example.org:443", "can't name hosts"),
            ("169.254.169.254/32:80", "link-local"),
            ("pods{}:80", "is not a permit"),
            ("pods{A B=c}:80", "is not a valid label key"),
            ("namespaces{a=b},:80", "is not a permit"),
            (":443", "is not a permit"),
        ],
    )
    def test_that_is_no_permit_is_refused_with_what_to_write(self, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=r"permit") as error:
            parse_permit(text)
        assert said in str(error.value)

    @given(raw_sources, st.sampled_from(["/mnt/data", "/mnt/a.b-c_d", "/mnt/7"]))
    def test_of_mounts_is_read_as_it_is_written(self, source: dict[str, Any], path: str) -> None:
        mount = Mount.model_validate({"name": "one", "mountPath": path} | source)
        assert str(parse_mount(str(mount))) == str(mount)

    @pytest.mark.parametrize(
        "text",
        [
            "data:/mnt/data",
            "pvc:data",
            "pvc:data:/data",
            "pvc:data:/mnt/../etc",
            "pvc:data:/mnt/a/b",
            "secret:a:/mnt/a",
            "pvc::/mnt/data",
            "hostpath:/etc:/mnt/etc",
        ],
    )
    def test_that_is_no_mount_is_refused_with_what_to_write(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"is not a mount.*write pvc:NAME:/mnt/FOLDER"):
            parse_mount(text)


@pytest.mark.parametrize(
    "raw",
    [
        {"port": 443},
        {"cidr": "10.1.2.3/32"},
        {"cidr": "10.1.2.3/32", "host": "example.org", "port": 443},
        {"cidr": "10.1.2.3/32", "podSelector": {"matchLabels": {"a": "b"}}, "port": 443},
        {"cidr": "10.1.2.3", "port": 443},
        {"cidr": "10.1.2.3/32", "port": 0},
        {"cidr": "10.1.2.3/32", "port": 443, "protocol": "SCTP"},
        {"cidr": "10.1.2.3/32", "port": 443, "endPort": 444},
        {"podSelector": {"matchLabels": {}}, "port": 443},
        {"podSelector": {}, "port": 443},
        {"podSelector": {"matchLabels": dict.fromkeys("abcd", "x")}, "port": 443},
        {"podSelector": {"matchLabels": {"k" * 64: "x"}}, "port": 443},
        {"podSelector": {"matchLabels": {"k": "v" * 64}}, "port": 443},
    ],
)
def test_what_is_no_permit_has_no_model(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Permit.model_validate(raw)


@pytest.mark.parametrize(
    "mounts",
    [
        [a_raw_mount() | {"configMap": {"name": "settings"}}],
        [{"name": "data", "mountPath": "/mnt/data"}],
        [a_raw_mount("one") | {"mountPath": "/mnt/same"}, a_raw_mount("two") | {"mountPath": "/mnt/same"}],
        [a_raw_mount("same") | {"mountPath": "/mnt/one"}, a_raw_mount("same") | {"mountPath": "/mnt/two"}],
        [a_raw_mount() | {"mountPath": "/etc"}],
        [a_raw_mount() | {"mountPath": "/mnt/../etc"}],
        [a_raw_mount() | {"mountPath": "/mnt/"}],
        [a_raw_mount() | {"hostPath": {"path": "/etc"}}],
        [a_raw_mount(f"data-{number}") for number in range(9)],
        [],
    ],
)
def test_what_is_no_mount_has_no_model(mounts: list[Any]) -> None:
    with pytest.raises(ValidationError):
        a_spec(mounts=mounts)


@pytest.mark.parametrize("raw", [{"cidr": "10.1.2.3/8", "port": 1}, {"cidr": "10.0.0.0/8", "port": 2, "endPort": 1}])
def test_a_rule_that_means_nothing_makes_the_policy_invalid(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        a_policy(egress=[raw])


class TestVerdict:
    @given(raw_permits, policies, st.integers(1, 8))
    def test_more_addresses_get_no_better_one(
        self, permit: dict[str, Any], policy: ExecutionPolicySpec, wider: int
    ) -> None:
        assume("cidr" in permit)
        narrow = ipaddress.ip_network(permit["cidr"])
        assume(narrow.prefixlen >= wider and not fault_of(Permit.model_validate(permit)))
        wide = permit | {"cidr": str(narrow.supernet(wider))}
        assert RANKS[verdict_of(wide, policy)] >= RANKS[verdict_of(permit, policy)]

    @given(st.lists(raw_permits, min_size=1, max_size=4), raw_permits, policies)
    def test_more_permits_get_no_better_one(
        self, permits: list[dict[str, Any]], more: dict[str, Any], policy: ExecutionPolicySpec
    ) -> None:
        fewer, all_of_them = (evaluate(asking(*one), policy) for one in (permits, [*permits, more]))
        assert RANKS[all_of_them.decision] >= RANKS[fewer.decision]
        assert set(all_of_them.grants) >= set(fewer.grants)

    @given(raw_permits, policies, ports, protocols)
    def test_a_permit_is_not_allowed_because_another_port_is(
        self, permit: dict[str, Any], policy: ExecutionPolicySpec, port: int, protocol: str
    ) -> None:
        """Each rule of the policy is for its ports and its protocol."""
        asked = permit | {"port": port, "protocol": protocol}
        if verdict_of(asked, policy) is Decision.ALLOWED:
            assert any(
                one.port <= port <= (one.end_port or one.port) and one.protocol == protocol for one in policy.egress
            )

    @given(st.lists(raw_permits, max_size=4), policies)
    def test_grants_are_exactly_what_is_not_allowed(
        self, permits: list[dict[str, Any]], policy: ExecutionPolicySpec
    ) -> None:
        verdict = evaluate(asking(*permits), policy)
        assert evaluate(asking(*permits), policy) == verdict
        fields = [one.field for one in (*verdict.violations, *verdict.beyond)]
        not_allowed = [
            f"spec.egress[{index}]"
            for index, one in enumerate(permits)
            if verdict_of(one, policy) is not Decision.ALLOWED
        ]
        assert sorted(fields) == sorted(not_allowed)
        by_field = {f"spec.egress[{index}]": str(Permit.model_validate(one)) for index, one in enumerate(permits)}
        assert all(by_field[one.field] == one.value for one in verdict.grants)
        more = policy.model_copy(update={"egress": (*policy.egress, *policy.with_approval.egress)})
        if verdict.decision is not Decision.DENIED:
            assert evaluate(asking(*permits), more).allowed, "control: the grants are all that is lacking"

    @given(st.lists(raw_sources, max_size=3), policies)
    def test_mounts_are_by_name(self, sources: list[dict[str, Any]], policy: ExecutionPolicySpec) -> None:
        mounts = [a_raw_mount(f"one-{index}", source) for index, source in enumerate(sources)]
        verdict = evaluate(asking(mounts=mounts), policy)
        names = [Mount.model_validate(one).source for one in mounts]
        allowed, further = ([one.source for one in rules] for rules in (policy.mounts, policy.with_approval.mounts))
        assert len(verdict.beyond) == sum(one not in allowed and one in further for one in names)
        assert len(verdict.violations) == sum(one not in allowed and one not in further for one in names)

    def test_names_field_value_and_what_is_allowed(self) -> None:
        policy = a_policy(
            egress=[{"cidr": "10.1.0.0/16", "port": 443}],
            withApproval={"egress": [{"cidr": "10.0.0.0/8", "port": 443, "endPort": 8443}], "mounts": [a_raw_source()]},
        )
        spec = asking({"cidr": "10.2.0.0/16", "port": 8443}, mounts=[a_raw_mount()])
        verdict = evaluate(spec, policy)
        assert verdict.decision is Decision.NEEDS_APPROVAL
        assert verdict.grants == (
            Grant(field="spec.egress[0]", value="10.2.0.0/16:8443/TCP"),
            Grant(field="spec.mounts[0]", value="pvc:data:/mnt/data"),
        )
        assert (
            "spec.egress[0]: 10.2.0.0/16:8443/TCP is not allowed by the policy (allowed: 10.1.0.0/16:443/TCP; "
            "with approval: 10.0.0.0/8:443-8443/TCP)"
        ) in verdict.message

    def test_without_rules_is_a_refusal(self) -> None:
        verdict = evaluate(asking({"cidr": "10.1.2.3/32", "port": 443}, mounts=[a_raw_mount()]), a_policy())
        assert [(one.field, one.allowed) for one in verdict.violations] == [
            ("spec.egress[0]", "none"),
            ("spec.mounts[0]", "none"),
        ]

    @pytest.mark.parametrize(
        ("permit", "said"),
        [
            ({"host": "pypi.org", "port": 443}, "can't name hosts"),
            ({"cidr": "10.1.2.3/8", "port": 443}, "host bits"),
            ({"cidr": "999.1.2.3/32", "port": 443}, "999.1.2.3"),
            ({"cidr": "169.254.169.254/32", "port": 80}, "link-local"),
            ({"cidr": "fe80::a9fe:a9fe/128", "port": 80}, "link-local"),  # OpenStack
            ({"cidr": "192.0.0.192/32", "port": 80}, "addresses for protocols and cloud metadata"),  # Oracle
            ({"cidr": "127.0.0.1/32", "port": 80}, "loopback"),
            *(
                ({"cidr": cidr, "port": 80}, "addresses of cloud metadata")
                for cidr in (
                    "168.63.129.16/32",  # Azure
                    "100.100.100.200/32",  # Alibaba
                    "fd00:100::100:200/128",  # Alibaba
                    "fd00:42::42/128",  # Scaleway
                    "fd00:a9fe:a9fe::1/128",  # Akamai
                    "fd00:c1::a9fe:a9fe/128",  # Oracle
                    "fd00:ec2::23/128",  # AWS
                    "fd20:ce::254/128",  # Google
                )
            ),
            *(
                ({"cidr": cidr, "port": 80}, "addresses that are translated to IPv4")
                for cidr in ("64:ff9b::a9fe:a9fe/128", "64:ff9b:1::a9fe:a9fe/128", "2002:a9fe:a9fe::/48")
            ),
            ({"cidr": "::ffff:169.254.169.254/128", "port": 80}, "IPv4 addresses written as IPv6"),
            ({"podSelector": {"matchLabels": {"a b": "c"}}, "port": 80}, "is not a valid label key"),
        ],
    )
    def test_nobody_can_permit(self, permit: dict[str, Any], said: str) -> None:
        """Not even a policy that names all there is, with or without approval."""
        everything = [{"cidr": cidr, "port": 1, "endPort": 65_535} for cidr in ("0.0.0.0/0", "::/0")]
        everything.append({**{key: permit[key] for key in permit.keys() & {"podSelector"}}, "port": 80}) if (
            "podSelector" in permit
        ) else None
        verdict = evaluate(asking(permit), a_policy(egress=everything, withApproval={"egress": everything}))
        assert verdict.decision is Decision.DENIED
        assert said in verdict.message

    def test_a_rule_for_an_agent_replaces_what_is_allowed(self) -> None:
        rule = {"cidr": "10.0.0.0/8", "port": 443}
        some = {"agent": "tester", "egress": [], "mounts": [a_raw_source()]}
        spec = asking({"cidr": "10.1.2.3/32", "port": 443}, mounts=[a_raw_mount()])
        verdict = evaluate(spec, a_policy(egress=[rule], agentRules=[some]))
        assert [one.field for one in verdict.violations] == ["spec.egress[0]"]


class TestOpening:
    def test_leaves_out_what_is_never_permitted(self) -> None:
        found = open_up(
            ipaddress.ip_network("0.0.0.0/0"), (*NEVER, (ipaddress.ip_network("10.96.0.1"), "the API server"))
        )
        assert found.left_out == (
            "0.0.0.0/8",
            "10.96.0.1/32",
            "100.100.100.200/32",
            "127.0.0.0/8",
            "168.63.129.16/32",
            "169.254.0.0/16",
            "192.0.0.0/24",
            "224.0.0.0/3",
        )

    def test_leaves_out_only_what_kubernetes_takes_for_ipv6(self) -> None:
        """The API server reads a range of IPv4 that is written as IPv6 as one of IPv4, and refuses the policy."""
        left_out = [ipaddress.IPv6Network(one) for one in open_up(ipaddress.ip_network("::/0"), NEVER).left_out]
        assert ipaddress.ip_network("fe80::/10") in left_out
        assert not any(one.network_address.ipv4_mapped for one in left_out)

    @given(networks, st.lists(networks, max_size=6))
    def test_opens_no_reserved_address(self, text: str, reserved: list[str]) -> None:
        network = ipaddress.ip_network(text)
        found = open_up(network, [(ipaddress.ip_network(one), "reserved") for one in reserved])
        shut = [ipaddress.ip_network(one) for one in found.left_out]
        assert all(one != network for one in shut), "Kubernetes wants them to be smaller than the range"
        if found.refused:
            assert not shut
            return
        for one in map(ipaddress.ip_network, reserved):
            if one.version == network.version and one.overlaps(network):
                assert any(one.subnet_of(hole) for hole in shut)  # type: ignore[type-var]

    def test_is_refused_where_too_much_would_have_to_be_left_out(self) -> None:
        nodes = [
            (ipaddress.ip_network(f"10.{index // 128}.{index % 128 * 2}.1/32"), "nodes")
            for index in range(MAX_LEFT_OUT + 1)
        ]
        found = open_up(ipaddress.ip_network("10.0.0.0/8"), nodes)
        assert f"{MAX_LEFT_OUT + 1} ranges" in found.refused

    def test_of_several_names_the_one_that_is_refused(self) -> None:
        api = ((ipaddress.ip_network("10.96.0.1"), "addresses of the api-server"),)
        permits = [parse_permit("10.0.0.0/8:443"), parse_permit("pods{app=db}:5432")]
        opened, refused = opening(permits, api)
        assert [(one.permit, one.left_out) for one in opened] == [
            ("10.0.0.0/8:443/TCP", ("10.96.0.1/32",)),
            ("pods{app=db}:5432/TCP", ()),
        ]
        assert refused == ""
        opened, refused = opening([*permits, parse_permit("10.96.0.1:443")], api)
        assert opened == ()
        assert refused.startswith("spec.egress[2]: no policy or approval can grant 10.96.0.1/32:443/TCP: ")
        assert "api-server" in refused

    def test_a_rule_covers_only_its_own_kind_of_addresses(self) -> None:
        rule = EgressRule.model_validate({"cidr": "::/0", "port": 443})
        policy = a_policy(egress=[rule])
        assert verdict_of({"cidr": "10.1.2.3/32", "port": 443}, policy) is Decision.DENIED
        assert verdict_of({"cidr": "2001:db8::/64", "port": 443}, policy) is Decision.ALLOWED
