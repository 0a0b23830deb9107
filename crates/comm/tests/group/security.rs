//! Joining by TLS: members without the job's certificate are refused and named, and the group waits for the right ones.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use ronde_comm::testing::run_ranks;
use ronde_comm::{GroupConfig, ProcessGroup, Security, TransportChoice, bind};
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, PointToPoint, Rank,
    Recovery, ReduceOp, Tag,
};
use ronde_identity::{Authority, Identity, Member, Validity};

use crate::meshes::{configs, now, secure};

const LIMIT: Duration = Duration::from_secs(60);
/// How long a listener waits for the expected member, which does not connect. It sees the wrong one in that time, on a busy machine, too.
const SHORT: Duration = Duration::from_secs(2);

type Joined = Result<ProcessGroup, CollectiveError>;

fn member(rank: u32) -> Member {
    Member::Rank(Rank(rank))
}

fn loopback() -> (TcpListener, SocketAddr) {
    bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("loopback can be listened on")
}

fn join(config: GroupConfig, listener: &TcpListener, peers: &[SocketAddr]) -> JoinHandle<Joined> {
    let listener = listener.try_clone().expect("a listener can be shared");
    let peers = peers.to_vec();
    thread::spawn(move || ProcessGroup::connect(config, listener, &peers))
}

/// Returns why a member could not join.
#[track_caller]
fn refusal(joining: JoinHandle<Joined>) -> String {
    match joining.join().expect("joining does not panic") {
        Err(error @ (CollectiveError::Connect { .. } | CollectiveError::Unreachable { .. })) => {
            assert_eq!(error.recovery(), Recovery::Rejoin);
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn contains(text: &str, words: &[&str]) {
    for words in words {
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
}

/// Lets rank 1 dial rank 0 with a wrong identity; both report it, then the right rank 1 joins.
fn refused(security: impl Fn(&Authority) -> Security, at_0: &[&str], at_1: &[&str]) {
    let mut members = configs(2, LIMIT);
    let authority = secure(&mut members);
    let [(first, address_0), (second, address_1)] = [loopback(), loopback()];
    let peers = [address_0, address_1];
    let mut bad = members[1].clone();
    bad.security = security(&authority);
    bad.connect_timeout = Duration::from_secs(10);

    let mut disappointed = members[0].clone();
    disappointed.connect_timeout = SHORT;
    let waiting = join(disappointed, &first, &peers);
    contains(&refusal(join(bad.clone(), &second, &peers)), at_1);
    let at_listener = refusal(waiting);
    contains(
        &at_listener,
        &["cannot connect to group ranks 1", "refused"],
    );
    contains(&at_listener, at_0);

    // The listener continues to wait for the right member, and reports afterwards which it refused.
    let waiting = join(members[0].clone(), &first, &peers);
    contains(&refusal(join(bad, &second, &peers)), at_1);
    let right = join(members[1].clone(), &second, &peers);
    let groups: Vec<_> = [waiting, right]
        .into_iter()
        .map(|joining| joining.join().expect("joining does not panic"))
        .collect::<Result<_, _>>()
        .expect("the right members join");
    contains(&groups[0].refused().join("; "), at_0);
    run_ranks(groups, LIMIT, |group| group.barrier());
}

#[test]
fn a_certificate_of_another_authority_is_refused() {
    refused(
        |_| {
            let other = Authority::new("job", now()).unwrap();
            Security::tls(other.issue(&member(1), now()).unwrap())
        },
        // The dialling member does not trust the listener either, and reports that first.
        &["it rejected this side's certificate"],
        &["group rank 0", "not issued by this job's authority"],
    );
}

#[test]
fn an_untrusted_certificate_of_one_that_trusts_the_listener_is_refused() {
    refused(
        |authority| {
            let other = Authority::new("job", now()).unwrap();
            let bad = other.issue(&member(1), now()).unwrap().to_pem();
            let cut = |text: &str| -> Vec<String> {
                let parts = text.split_inclusive("-----END CERTIFICATE-----\n");
                parts.map(str::to_owned).collect()
            };
            let bad = cut(bad.expose());
            let text = [&*bad[0], &authority.certificate_pem(), &*bad[2]].concat();
            Security::tls(Identity::from_pem("job", member(1), &text).unwrap())
        },
        &["not issued by this job's authority"],
        &["group rank 0", "it rejected this side's certificate"],
    );
}

#[test]
fn an_expired_certificate_is_refused() {
    refused(
        |authority| {
            let day = Duration::from_secs(86_400);
            let past = Validity::from_now(SystemTime::now() - 2 * day, day);
            Security::tls(authority.issue(&member(1), past).unwrap())
        },
        &["has expired"],
        &["it rejected this side's certificate", "expired"],
    );
}

#[test]
fn a_certificate_that_is_not_valid_yet_is_refused() {
    refused(
        |authority| {
            let day = Duration::from_secs(86_400);
            let future = Validity::from_now(SystemTime::now() + 4 * day, day);
            Security::tls(authority.issue(&member(1), future).unwrap())
        },
        &["is not valid yet", "clocks"],
        &["it rejected this side's certificate", "not valid yet"],
    );
}

#[test]
fn a_dialler_refuses_a_listener_whose_certificate_has_expired() {
    let mut members = configs(2, LIMIT);
    let authority = secure(&mut members);
    let day = Duration::from_secs(86_400);
    let past = Validity::from_now(SystemTime::now() - 2 * day, day);
    members[0].connect_timeout = SHORT;
    members[0].security = Security::tls(authority.issue(&member(0), past).unwrap());
    let [(first, address_0), (second, address_1)] = [loopback(), loopback()];
    let peers = [address_0, address_1];
    let waiting = join(members[0].clone(), &first, &peers);
    let dialling = join(members[1].clone(), &second, &peers);
    contains(&refusal(dialling), &["group rank 0", "has expired"]);
    contains(&refusal(waiting), &["it rejected this side's certificate"]);
}

/// Forwards bytes and records those of the dialling member.
fn overhear(listener: TcpListener, to: SocketAddr) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let (mut inner, _) = listener.accept().expect("loopback works");
        let mut outer = TcpStream::connect(to).expect("loopback works");
        let (back, forth) = (
            outer.try_clone().expect("a socket can be shared"),
            inner.try_clone().expect("a socket can be shared"),
        );
        let back = thread::spawn(move || spoil(back, forth, usize::MAX, &[]));
        let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = inner.read(&mut buffer) {
            heard.extend(&buffer[..count]);
            if outer.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _gone = outer.shutdown(std::net::Shutdown::Write);
        back.join().expect("passing on does not panic");
        heard
    })
}

#[test]
fn a_recorded_handshake_is_refused_when_it_is_replayed() {
    let mut members = configs(2, LIMIT);
    secure(&mut members);
    let [(first, address_0), (second, address_1), (middle, between)] =
        [loopback(), loopback(), loopback()];
    let overhearing = overhear(middle, address_0);
    let peers = [address_0, address_1];
    let waiting = join(members[0].clone(), &first, &peers);
    let dialling = join(members[1].clone(), &second, &[between, address_1]);
    let groups = [waiting, dialling].map(|joining| joining.join().unwrap().unwrap());
    run_ranks(groups.into(), LIMIT, |group| group.barrier());
    let heard = overhearing.join().unwrap();
    assert!(heard.len() > 1000, "a handshake with a certificate");

    let mut disappointed = members[0].clone();
    disappointed.connect_timeout = SHORT;
    let waiting = join(disappointed, &first, &peers);
    let mut replay = TcpStream::connect(address_0).unwrap();
    // The connection may be closed before the end.
    let _gone = replay.write_all(&heard);
    let told = refusal(waiting);
    contains(
        &told,
        &["cannot connect to group ranks 1", "refused", "decrypt"],
    );
}

#[test]
fn another_ranks_certificate_is_refused() {
    refused(
        |authority| Security::tls(authority.issue(&member(7), now()).unwrap()),
        &["it claims to be group rank 1", "rank-7"],
        &["it refused this member", "rank 1 of job job", "rank-7"],
    );
}

#[test]
fn a_peer_without_a_certificate_or_without_tls_is_refused() {
    refused(
        |_| Security::Plain,
        &["does not speak the job's TLS"],
        &["it uses TLS, but this member is configured for plain connections"],
    );
    // TLS without a certificate, as used by a host that joins with a token.
    let mut members = configs(2, LIMIT);
    let authority = secure(&mut members);
    let [(first, address), (_second, absent)] = [loopback(), loopback()];
    members[0].connect_timeout = SHORT;
    let waiting = join(members[0].clone(), &first, &[address, absent]);
    let token = authority.join_token().unwrap();
    let config = token.client_config(b"ronde-comm/1").unwrap();
    let me = authority.issue(&member(1), now()).unwrap();
    let name = me.name_of(&member(0)).unwrap();
    let mut tls = ronde_identity::rustls::ClientConnection::new(config, name).unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    let outcome = loop {
        match tls.complete_io(&mut socket) {
            Ok((0, 0)) => break Ok(()),
            Ok(_) if !tls.is_handshaking() => break tls.complete_io(&mut socket).map(drop),
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    contains(&format!("{outcome:?}"), &["CertificateRequired"]);
    contains(&refusal(waiting), &["it presented no certificate"]);
}

#[test]
fn a_listener_that_is_an_impostor_is_refused_by_the_dialling_member() {
    let mut members = configs(2, LIMIT);
    let authority = secure(&mut members);
    members[0].connect_timeout = SHORT;
    members[0].security = Security::tls(authority.issue(&member(3), now()).unwrap());
    let [(first, address_0), (second, address_1)] = [loopback(), loopback()];
    let peers = [address_0, address_1];
    let waiting = join(members[0].clone(), &first, &peers);
    let dialling = join(members[1].clone(), &second, &peers);
    contains(&refusal(dialling), &["its certificate is for", "rank-3"]);
    contains(&refusal(waiting), &["it rejected this side's certificate"]);
}

#[test]
fn tls_where_plain_is_expected_is_reported_on_both_sides() {
    let mut members = configs(2, LIMIT);
    secure(&mut members);
    members[0].connect_timeout = SHORT;
    members[0].security = Security::Plain;
    let [(first, address_0), (second, address_1)] = [loopback(), loopback()];
    let peers = [address_0, address_1];
    let waiting = join(members[0].clone(), &first, &peers);
    let dialling = join(members[1].clone(), &second, &peers);
    contains(&refusal(dialling), &["does not speak the job's TLS"]);
    contains(
        &refusal(waiting),
        &["it uses TLS, but this member is configured"],
    );
}

#[test]
fn plain_connections_to_other_hosts_must_be_requested_explicitly() {
    let far: SocketAddr = "192.0.2.7:9".parse().unwrap();
    for (security, is_refused) in [(Security::default(), true), (Security::Plain, false)] {
        let mut config = configs(2, LIMIT).remove(0);
        config.security = security;
        config.connect_timeout = Duration::from_millis(50);
        let (listener, here) = loopback();
        let error = ProcessGroup::connect(config, listener, &[here, far]).unwrap_err();
        let is_invalid = matches!(error, CollectiveError::Invalid { .. });
        assert_eq!(is_invalid, is_refused, "{error}");
    }
    let mut everywhere = configs(2, LIMIT).remove(0);
    everywhere.connect_timeout = Duration::from_millis(50);
    let (listener, _) = bind(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).unwrap();
    let (_, here) = loopback();
    let error = ProcessGroup::connect(everywhere, listener, &[here, here]).unwrap_err();
    contains(&error.to_string(), &["0.0.0.0", "explicitly"]);
}

#[test]
fn a_group_of_some_ranks_names_its_members() {
    let mut members = configs(2, LIMIT);
    let authority = Authority::new("job", now()).unwrap();
    let named = vec![member(4), Member::Host("b".to_owned())];
    for (config, who) in members.iter_mut().zip(&named) {
        let identity = authority.issue(who, now()).unwrap();
        config.security = Security::tls_among(identity, named.clone());
    }
    let groups = crate::meshes::join(members.clone())
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let sums = run_ranks(groups, LIMIT, |group| {
        let mut values = vec![group.rank().0 + 1; 100_000];
        group.all_reduce(&mut values, ReduceOp::Sum)?;
        Ok::<_, CollectiveError>(values.iter().all(|&value| value == 3))
    });
    assert_eq!(sums, [true; 2]);
    let identity = authority.issue(&named[0], now()).unwrap();
    members[0].security = Security::tls_among(identity, vec![member(4)]);
    let (listener, at) = loopback();
    let error = ProcessGroup::connect(members.remove(0), listener, &[at, at]).unwrap_err();
    assert!(matches!(error, CollectiveError::Invalid { .. }), "{error}");
}

#[test]
fn connections_within_a_host_are_plain_after_authentication_unless_tcp_is_requested() {
    let secret = [0xa5_u8; 4096];
    for transport in [TransportChoice::Auto, TransportChoice::Tcp] {
        let mut members = configs(2, LIMIT);
        secure(&mut members);
        members[1].transport = transport;
        let [(first, address_0), (second, address_1)] = [loopback(), loopback()];
        let (middle, between) = loopback();
        let listening = overhear(middle, address_0);
        let waiting = join(members[0].clone(), &first, &[address_0, address_1]);
        let dialling = join(members[1].clone(), &second, &[between, address_1]);
        let receiver = thread::spawn(move || {
            let group = waiting.join().unwrap().unwrap();
            let buffer = Buffer::host(DType::U8, secret.len());
            let received = group.receive(GroupRank(1), Tag(3), buffer).unwrap();
            received.wait().unwrap().bytes().to_vec()
        });
        let group = dialling.join().unwrap().unwrap();
        let sent = group.send(GroupRank(0), Tag(3), Buffer::copy_of(&secret));
        sent.unwrap().wait().unwrap();
        assert_eq!(receiver.join().unwrap(), secret, "{transport:?}");
        drop(group);
        let heard = listening.join().unwrap();
        let is_plain = heard.windows(secret.len()).any(|bytes| bytes == secret);
        assert_eq!(
            is_plain,
            transport == TransportChoice::Auto,
            "{transport:?}"
        );
    }
}

/// Forwards bytes between a member and its peer, and corrupts some after `clean` bytes.
fn spoil(from: TcpStream, mut to: TcpStream, mut clean: usize, spoiled: &[u8]) {
    let mut from = from;
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if clean < count {
            let _gone = to.write_all(&buffer[..clean]);
            let _gone = to.write_all(spoiled);
            clean = usize::MAX;
        } else {
            clean = clean.saturating_sub(count);
            if to.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    }
    let _gone = to.shutdown(std::net::Shutdown::Write);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn corrupted_bytes_end_the_group_and_change_nothing(
        clean in 0_usize..12_000,
        spoiled in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut members = configs(2, Duration::from_secs(5));
        secure(&mut members);
        for config in &mut members {
            config.connect_timeout = Duration::from_millis(500);
            config.transport = TransportChoice::Tcp;
        }
        let [(first, address_0), (second, address_1)] = [loopback(), loopback()];
        let (middle, between) = loopback();
        let proxy = thread::spawn(move || {
            let (inner, _) = middle.accept().unwrap();
            let outer = TcpStream::connect(address_0).unwrap();
            let back = (outer.try_clone().unwrap(), inner.try_clone().unwrap());
            let forth = thread::spawn(move || spoil(inner, outer, clean, &spoiled));
            spoil(back.0, back.1, usize::MAX, &[]);
            forth.join().unwrap();
        });
        let waiting = join(members[0].clone(), &first, &[address_0, address_1]);
        let dialling = join(members[1].clone(), &second, &[between, address_1]);
        let working = [waiting, dialling].map(|joining| thread::spawn(move || {
            let group = joining.join().unwrap()?;
            let mut values = vec![group.rank().0 + 1; 5000];
            group.all_reduce(&mut values, ReduceOp::Sum)?;
            Ok::<_, CollectiveError>(values)
        }));
        let outcomes = working.map(|thread| thread.join().unwrap());
        for outcome in &outcomes {
            match outcome {
                // Results from before the corrupted bytes count, and are correct.
                Ok(values) => prop_assert_eq!(values, &vec![3_u32; 5000]),
                Err(error) => prop_assert!(!error.to_string().contains("panic"), "{}", error),
            }
        }
        proxy.join().unwrap();
    }
}
