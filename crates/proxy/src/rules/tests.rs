//! Of rules: which fits, what is special, that no way of writing an address changes what holds for it.

use super::*;
use proptest::prelude::*;

fn rules(lines: &[&str]) -> Rules {
    let rules = lines.iter().map(|line| line.parse().unwrap()).collect();
    Rules { rules, otherwise: Verdict::Deny, here: Verdict::Allow }
}

impl Rules {
    /// At a host that has one address.
    fn verdict(&self, host: &Host, address: Option<IpAddr>, port: u16) -> Verdict {
        let own = |address: IpAddr| address == IpAddr::from([192, 0, 2, 5]);
        self.judge(host, address, port, &own).verdict
    }
}

fn host(text: &str) -> Host {
    Host::read(text.as_bytes()).unwrap()
}

#[test]
fn the_first_rule_that_fits_decides() {
    let rules = rules(&[
        "deny 10.1.0.0/16",
        "allow 10.0.0.0/8:22,8000-8100",
        "direct *.example.org:443",
        "allow example.org",
        "allow [fd00::/8]:80",
        "deny *:25",
        "allow ::1",
    ]);
    for (name, port, verdict) in [
        ("10.1.2.3", 22, Verdict::Deny),
        ("10.2.2.3", 22, Verdict::Allow),
        ("10.2.2.3", 8050, Verdict::Allow),
        ("10.2.2.3", 23, Verdict::Deny),
        ("a.b.Example.ORG", 443, Verdict::Direct),
        ("a.b.example.org", 80, Verdict::Deny),
        ("badexample.org", 443, Verdict::Deny),
        ("example.org", 25, Verdict::Allow),
        ("fd12::1", 80, Verdict::Allow),
        ("fe80::1", 80, Verdict::Deny),
        ("::1", 9, Verdict::Allow),
        ("::ffff:10.2.2.3", 22, Verdict::Allow),
    ] {
        assert_eq!(rules.verdict(&host(name), None, port), verdict, "{name}:{port}");
    }
}

#[test]
fn a_name_is_judged_by_the_address_it_leads_to_as_well() {
    let rules = rules(&["deny 127.0.0.0/8", "allow intra.example.org"]);
    let name = host("intra.example.org");
    assert_eq!(rules.verdict(&name, "10.0.0.1".parse().ok(), 80), Verdict::Allow);
    assert_eq!(rules.verdict(&name, "127.0.0.1".parse().ok(), 80), Verdict::Deny);
    assert_eq!(rules.verdict(&name, "::ffff:127.0.0.1".parse().ok(), 80), Verdict::Deny);
}

#[test]
fn what_is_no_rule_is_refused() {
    for bad in [
        "",
        "allow",
        "permit *",
        "allow a b",
        "allow 10.0.0.0/33",
        "allow host:0-70000",
        "allow host:9-8",
        "allow [::1",
        "allow [::1]22",
        "allow *.10.0.0.1",
        "allow a:",
        "allow [::1]/64",
    ] {
        assert!(bad.parse::<Rule>().is_err(), "{bad:?}");
    }
}

#[test]
fn special_addresses_are_for_rules_that_name_them() {
    let special = [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "0",
        "0.1.2.3",
        "::",
        "::1",
        "::ffff:0.0.0.0",
        "::ffff:127.0.0.1",
        "0177.1",
        "2130706433",
        "0x7f.1",
        "169.254.169.254",
        "169.254.1.1",
        "fe80::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "192.0.2.5",
        "::ffff:192.0.2.5",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::127.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::c000:205",
        "127.0.0.1.",
        "2001::80ff:fffe",
    ];
    let wide = [
        rules(&["allow *"]),
        rules(&["allow 0.0.0.0/0", "allow [::/0]"]),
        rules(&["deny 127.0.0.0/8", "allow *"]),
        rules(&["allow 128.0.0.0/1", "allow 0.0.0.0/1", "allow 64.0.0.0/2", "allow 168.0.0.0/7"]),
        rules(&["allow 192.0.2.4/31", "allow [64:ff9b::/96]", "allow [2002::/16]"]),
    ];
    for text in special {
        for rules in &wide {
            assert_eq!(rules.verdict(&host(text), None, 80), Verdict::Deny, "{text}: {rules:?}");
        }
        let line = match host(text) {
            Host::Address(address @ IpAddr::V6(_)) => format!("allow [{address}]"),
            other => format!("allow {other}"),
        };
        assert_eq!(rules(&[&line]).verdict(&host(text), None, 80), Verdict::Allow, "{line}");
        // One that does not name it keeps none that does from holding.
        let lines = rules(&["allow *", &line]);
        assert_eq!(lines.verdict(&host(text), None, 80), Verdict::Allow, "{line}");
    }
    for (line, text) in [
        ("allow 127.0.0.0/8", "127.1.2.3"),
        ("allow 169.254.0.0/16", "169.254.1.1"),
        ("allow [fe80::/10]", "fe80::1"),
        ("allow 0.0.0.0/0", "192.0.2.6"),
        ("allow [64:ff9b::/96]", "64:ff9b::a00:1"),
    ] {
        assert_eq!(rules(&[line]).verdict(&host(text), None, 80), Verdict::Allow, "{line}");
    }
    let metadata = rules(&["allow 169.254.0.0/16"]);
    let judged = metadata.judge(&host("169.254.169.254"), None, 80, &|_| false);
    assert_eq!(
        (judged.verdict, judged.unnamed),
        (Verdict::Deny, Some("a cloud's metadata service"))
    );
}

#[test]
fn a_name_leads_to_no_special_address_but_localhost_to_loopback() {
    let rules = rules(&["allow *.example.org", "allow db", "allow localhost"]);
    for (name, address, verdict) in [
        ("www.example.org", "198.51.100.1", Verdict::Allow),
        ("www.example.org", "127.0.0.1", Verdict::Deny),
        ("www.example.org", "192.0.2.5", Verdict::Deny),
        ("db", "::", Verdict::Deny),
        ("LOCALHOST.", "127.0.0.1", Verdict::Allow),
        ("localhost", "::1", Verdict::Allow),
        ("localhost", "0.0.0.0", Verdict::Deny),
        ("localhost", "192.0.2.5", Verdict::Deny),
    ] {
        assert_eq!(
            rules.verdict(&host(name), address.parse().ok(), 80),
            verdict,
            "{name} {address}"
        );
    }
}

#[test]
fn past_the_session_special_addresses_are_guarded_too_and_through_it_the_server_does() {
    let lines = ["direct *"].map(|line| line.parse().unwrap()).to_vec();
    let direct = Rules { rules: lines, otherwise: Verdict::Allow, here: Verdict::Direct };
    assert_eq!(direct.verdict(&host("127.0.0.1"), None, 80), Verdict::Deny);
    assert_eq!(direct.verdict(&host("10.0.0.1"), None, 80), Verdict::Direct);
    let none = Rules { rules: Vec::new(), ..direct };
    assert_eq!(none.verdict(&host("127.0.0.1"), None, 80), Verdict::Allow);
}

#[test]
fn what_denies_an_ipv4_address_denies_it_inside_another() {
    let rules = rules(&["deny 10.0.0.0/8", "deny ::ffff:172.16.0.0/108", "allow *"]);
    for text in [
        "::ffff:10.1.1.1",
        "::10.1.1.1",
        "64:ff9b::a01:101",
        "2002:a01:101::",
        "64:ff9b:1::10.1.1.1",
        "172.31.0.1",
        "10.257",
    ] {
        assert_eq!(rules.verdict(&host(text), None, 80), Verdict::Deny, "{text}");
    }
    assert_eq!(rules.verdict(&host("2001:db8::1"), None, 80), Verdict::Allow);
}

/// An IPv4 address, written as a resolver takes it.
fn forms(address: std::net::Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets().map(u32::from);
    let (all, low, lower) = (address.to_bits(), b << 16 | c << 8 | d, c << 8 | d);
    let mut forms = vec![
        format!("{all}"),
        format!("0{all:o}"),
        format!("0x{all:X}"),
        format!("{a}.{low}"),
        format!("0{a:o}.0x{low:x}"),
        format!("{a}.0x{b:x}.{lower}"),
        format!("0x{a:x}.0{b:o}.{c}.0{d:o}"),
        format!("0X{a:02X}.{b}.0{c:03o}.{d}"),
        format!("::ffff:{a}.{b}.{c}.{d}"),
        format!("0:0:0:0:0:FFFF:{:X}:{lower:x}", a << 8 | b),
        format!("0000:0:0000:0:0:ffff:{:04x}:{lower:04X}", a << 8 | b),
    ];
    forms.extend(forms[..8].to_vec().iter().map(|form| format!("{form}.")));
    forms
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let network = prop_oneof![
        Just("*".to_owned()),
        Just("localhost".to_owned()),
        Just("*.example.org".to_owned()),
        (any::<u32>(), 0..=32_u8)
            .prop_map(|(four, bits)| format!("{}/{bits}", std::net::Ipv4Addr::from(four))),
        (0_usize..8, 0..=32_u8).prop_map(|(which, bits)| format!("{}/{bits}", NEAR[which])),
        (any::<u128>(), 0..=128_u8)
            .prop_map(|(six, bits)| format!("[{}/{bits}]", std::net::Ipv6Addr::from(six))),
        (0..=128_u8).prop_map(|bits| format!("[::ffff:127.0.0.1/{bits}]")),
    ];
    (prop_oneof!["allow", "deny", "direct"], network)
        .prop_map(|(verdict, network)| format!("{verdict} {network}").parse().unwrap())
}

const NEAR: [&str; 8] = [
    "127.0.0.1",
    "0.0.0.0",
    "10.0.0.1",
    "169.254.169.254",
    "192.0.2.5",
    "224.0.0.1",
    "255.255.255.255",
    "100.100.100.200",
];

proptest! {
    #[test]
    fn no_text_form_of_an_address_is_judged_otherwise_than_the_address(
        lines in prop::collection::vec(any_rule(), 0..6), far in any::<u32>(), near in 0_usize..16,
        here in prop_oneof![Just(Verdict::Allow), Just(Verdict::Direct)], otherwise in prop_oneof![Just(Verdict::Allow), Just(Verdict::Deny)],
    ) {
        let address = NEAR.get(near).map_or(std::net::Ipv4Addr::from(far), |near| near.parse().unwrap());
        let rules = Rules { rules: lines, otherwise, here };
        let wanted = rules.verdict(&Host::Address(address.into()), None, 80);
        for form in forms(address) {
            let read = host(&form);
            prop_assert_eq!(&read, &Host::Address(address.into()), "{}", form);
            prop_assert_eq!(rules.verdict(&read, None, 80), wanted, "{}", form);
        }
        // As a resolver may give it.
        let mapped = address.to_ipv6_mapped().into();
        let name = host("name.example.net");
        prop_assert_eq!(rules.verdict(&name, Some(mapped), 80), rules.verdict(&name, Some(address.into()), 80));
    }

    #[test]
    fn no_text_form_of_an_ipv6_address_is_judged_otherwise(
        lines in prop::collection::vec(any_rule(), 0..6), six in any::<u128>(), inside in 0_usize..8,
    ) {
        let four: std::net::Ipv4Addr = NEAR[inside].parse().unwrap();
        let rules = Rules { rules: lines, otherwise: Verdict::Deny, here: Verdict::Allow };
        let nat64 = (0x64_ff9b_u128 << 96) | u128::from(four.to_bits());
        for six in [six, nat64, u128::from(four.to_bits()), 0x2002_u128 << 112 | u128::from(four.to_bits()) << 80] {
            let address = std::net::Ipv6Addr::from(six);
            let groups = address.segments().map(|group| format!("{group:04X}")).join(":");
            let wanted = rules.verdict(&Host::Address(address.to_canonical()), None, 80);
            prop_assert_eq!(rules.verdict(&host(&groups), None, 80), wanted);
            // What is inside is not reached by a way around, either.
            let denied = |ip: IpAddr| rules.rules.iter().any(|rule| rule.verdict == Verdict::Deny && rule.fits(&Host::Address(ip), Some(ip), 80));
            if six == nat64 && !rules.rules.iter().any(|rule| rule.verdict != Verdict::Deny) {
                prop_assert!(!denied(four.into()) || wanted == Verdict::Deny);
            }
        }
    }

    #[test]
    fn only_a_rule_that_names_it_lets_a_special_address_through(lines in prop::collection::vec(any_rule(), 0..6), near in 0_usize..8) {
        let address: IpAddr = NEAR[near].parse().unwrap();
        let rules = Rules { rules: lines, otherwise: Verdict::Deny, here: Verdict::Allow };
        if near != 2 && rules.verdict(&Host::Address(address), None, 80) == Verdict::Allow {
            let narrow = |rule: &Rule| matches!(&rule.hosts, Pattern::Network(network) if {
                network.contains(address) && special_of(address).map_or(*network == Network::of(address), |special| network.is_within(&special.network))
            });
            prop_assert!(rules.rules.iter().any(|rule| rule.verdict == Verdict::Allow && narrow(rule)));
        }
    }

    #[test]
    fn no_text_makes_a_reader_panic(text in "(allow|deny|direct)? ?[ -~]{0,30}") {
        if let Ok(rule) = text.parse::<Rule>() {
            let rules = Rules { rules: vec![rule], otherwise: Verdict::Deny, here: Verdict::Allow };
            rules.verdict(&host("::1"), None, 1);
            rules.verdict(&host("0.0.0.0"), None, 1);
            rules.verdict(&host("a.b"), "1.2.3.4".parse().ok(), 1);
        }
    }
}
