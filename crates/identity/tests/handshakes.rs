//! Handshakes in memory between valid and invalid members.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ronde_core::Rank;
use ronde_identity::rustls::client::ResolvesClientCert;
use ronde_identity::rustls::crypto::aws_lc_rs::{self, sign::any_supported_type};
use ronde_identity::rustls::pki_types::pem::PemObject;
use ronde_identity::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use ronde_identity::rustls::sign::CertifiedKey;
use ronde_identity::rustls::version::TLS13;
use ronde_identity::rustls::{
    ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, ServerConfig, ServerConnection,
    SignatureScheme,
};
use ronde_identity::{Authority, Identity, JoinToken, Member, Validity, explain};

const ALPN: &[u8] = b"test/1";
const RANK_0: Member = Member::Rank(Rank(0));
const RANK_1: Member = Member::Rank(Rank(1));

fn today() -> Validity {
    Validity::from_now(SystemTime::now(), Duration::from_secs(3600))
}

fn yesterday() -> Validity {
    let day = Duration::from_secs(86_400);
    Validity::from_now(SystemTime::now() - 2 * day, day)
}

/// Starts later than clocks may differ.
fn in_some_days() -> Validity {
    let day = Duration::from_secs(86_400);
    Validity::from_now(SystemTime::now() + 4 * day, day)
}

fn authority(job: &str) -> Authority {
    Authority::new(job, today()).expect("an authority can be made")
}

/// The errors of the client and the server, if they failed.
type Verdicts = (Option<String>, Option<String>);

/// Runs a handshake to its end and returns the client's certificate as the server received it.
fn handshake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: ServerName<'static>,
) -> (Verdicts, Option<CertificateDer<'static>>) {
    let mut client =
        ClientConnection::new(client, name).expect("the members of the test are valid");
    let mut server = ServerConnection::new(server).expect("the members of the test are valid");
    let (mut verdicts, mut shown) = ((None, None), None);
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client
                .write_tls(&mut wire)
                .expect("the members of the test are valid");
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() && server.read_tls(&mut rest).unwrap_or(0) > 0 {
            if let Err(error) = server.process_new_packets() {
                verdicts.1.get_or_insert(explain(&error));
            }
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server
                .write_tls(&mut wire)
                .expect("the members of the test are valid");
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() && client.read_tls(&mut rest).unwrap_or(0) > 0 {
            if let Err(error) = client.process_new_packets() {
                verdicts.0.get_or_insert(explain(&error));
            }
        }
    }
    if verdicts == (None, None) {
        assert!(!client.is_handshaking() && !server.is_handshaking());
        assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
        shown = server.peer_certificates().map(|all| all[0].clone());
    }
    (verdicts, shown)
}

fn between(dialler: &Identity, acceptor: &Identity, dialled: &Member) -> Verdicts {
    handshake(
        dialler
            .client_config(ALPN)
            .expect("the members of the test are valid"),
        acceptor
            .server_config(ALPN)
            .expect("the members of the test are valid"),
        dialler
            .name_of(dialled)
            .expect("the members of the test are valid"),
    )
    .0
}

/// Returns the two certificates and the key in an identity's text.
fn cut(text: &str) -> Vec<String> {
    let parts = text.split_inclusive("-----END CERTIFICATE-----\n");
    parts.map(str::to_owned).collect()
}

#[track_caller]
fn says(verdict: Option<String>, words: &str) {
    let verdict = verdict.expect("this side failed");
    assert!(verdict.contains(words), "{verdict}");
}

#[test]
fn members_of_a_job_connect_and_identify_each_other() {
    let authority = authority("job");
    let members = [
        RANK_0,
        RANK_1,
        Member::Coordinator,
        Member::Host("gpu-02.example".to_owned()),
    ];
    for acceptor in &members {
        for dialler in &members {
            let dialling = authority.issue(dialler, today()).unwrap();
            let accepting = authority.issue(acceptor, today()).unwrap();
            let (verdicts, shown) = handshake(
                dialling.client_config(ALPN).unwrap(),
                accepting.server_config(ALPN).unwrap(),
                dialling.name_of(acceptor).unwrap(),
            );
            assert_eq!(verdicts, (None, None));
            let shown = shown.unwrap();
            for claimed in &members {
                let is_it = accepting.check_peer(&shown, claimed).is_ok();
                assert_eq!(is_it, claimed == dialler, "{dialler} as {claimed}");
            }
        }
    }
}

#[test]
fn another_authority_is_refused_by_both_sides() {
    // Another job, and another authority for a job of the same name.
    for name in ["other", "job"] {
        let (ours, theirs) = (authority("job"), authority(name));
        let good = ours.issue(&RANK_0, today()).unwrap();
        let bad = theirs.issue(&RANK_1, today()).unwrap();
        let words = "not issued by this job's authority";
        says(between(&good, &bad, &RANK_1).0, words);
        says(between(&bad, &good, &RANK_0).0, words);
        // The client trusts the server, but its own certificate is not trusted there.
        let bad_text = bad.to_pem();
        let parts = cut(bad_text.expose());
        let good_text = good.to_pem();
        let text = [&*parts[0], &*cut(good_text.expose())[1], &*parts[2]].concat();
        let sly = Identity::from_pem(name, RANK_1, &text).unwrap();
        let (verdicts, _) = handshake(
            sly.client_config(ALPN).unwrap(),
            good.server_config(ALPN).unwrap(),
            good.name_of(&RANK_0).unwrap(),
        );
        says(verdicts.1, words);
        says(verdicts.0, "rejected this side's certificate");
    }
}

#[test]
fn expired_and_early_certificates_are_refused() {
    let authority = authority("job");
    let good = authority.issue(&RANK_0, today()).unwrap();
    for (validity, words) in [(yesterday(), "expired"), (in_some_days(), "not valid yet")] {
        let bad = authority.issue(&RANK_1, validity).unwrap();
        let (client, server) = between(&bad, &good, &RANK_0);
        says(server, words);
        says(
            client,
            "rejected this side's certificate: it has expired or",
        );
        let (client, server) = between(&good, &bad, &RANK_1);
        says(client, words);
        says(
            server,
            "rejected this side's certificate: it has expired or",
        );
    }
}

#[test]
fn no_certificate_another_rank_or_another_protocol_is_refused() {
    let authority = authority("job");
    let good = authority.issue(&RANK_0, today()).unwrap();
    let (client, server) = between(&good, &good, &RANK_1);
    says(client, "its certificate is for");
    says(server, "rejected this side's certificate");
    let token = authority.join_token().unwrap();
    let (verdicts, _) = handshake(
        token.client_config(ALPN).unwrap(),
        good.server_config(ALPN).unwrap(),
        good.name_of(&RANK_0).unwrap(),
    );
    says(verdicts.1, "it presented no certificate");
    says(verdicts.0, "none was presented");
    let (verdicts, _) = handshake(
        good.client_config(b"other/1").unwrap(),
        good.server_config(ALPN).unwrap(),
        good.name_of(&RANK_0).unwrap(),
    );
    says(verdicts.0, "another protocol");
}

/// Presents a public certificate with a key that does not match it.
#[derive(Debug)]
struct Thief(Arc<CertifiedKey>);

impl ResolvesClientCert for Thief {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn a_certificate_is_useless_without_its_key() {
    let authority = authority("job");
    let [victim, good] = [RANK_1, RANK_0].map(|who| authority.issue(&who, today()).unwrap());
    let mine = authority.issue(&Member::Rank(Rank(7)), today()).unwrap();
    let certificates = |identity: &Identity| -> Vec<CertificateDer<'static>> {
        let text = identity.to_pem();
        let all = CertificateDer::pem_slice_iter(text.expose().as_bytes());
        all.collect::<Result<_, _>>().unwrap()
    };
    let key = PrivateKeyDer::from_pem_slice(mine.to_pem().expose().as_bytes()).unwrap();
    for (shown, is_good) in [(certificates(&mine), true), (certificates(&victim), false)] {
        let mut roots = RootCertStore::empty();
        roots.add(shown[1].clone()).unwrap();
        let key = any_supported_type(&key).unwrap();
        let thief = Thief(Arc::new(CertifiedKey::new(shown, key)));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(thief));
        config.alpn_protocols = vec![ALPN.to_vec()];
        let server = good.server_config(ALPN).unwrap();
        let name = mine.name_of(&RANK_0).unwrap();
        let (verdicts, _) = handshake(Arc::new(config), server, name);
        if is_good {
            assert_eq!(verdicts, (None, None));
        } else {
            says(verdicts.1, "not issued by this job's authority");
            says(verdicts.0, "rejected this side's certificate");
        }
    }
}

#[test]
fn a_token_trusts_only_its_own_authority() {
    let (ours, other) = (authority("job"), authority("job"));
    let handed_out = ours.join_token().unwrap().to_text();
    let token: JoinToken = handed_out.expose().parse().unwrap();
    assert_eq!(token.authority(), ours.fingerprint());
    for (authority, is_good) in [(&ours, true), (&other, false)] {
        let coordinator = authority.issue(&Member::Coordinator, today()).unwrap();
        let (verdicts, _) = handshake(
            token.client_config(ALPN).unwrap(),
            coordinator.joining_server_config(ALPN).unwrap(),
            coordinator.name_of(&Member::Coordinator).unwrap(),
        );
        assert_eq!(verdicts.0.is_none(), is_good, "{verdicts:?}");
    }
    // The chain must be valid too: here another member's certificate is sent with the known
    // authority's.
    let forged = other.issue(&Member::Coordinator, today()).unwrap().to_pem();
    let real = ours.issue(&RANK_0, today()).unwrap().to_pem();
    let (forged, real) = (cut(forged.expose()), cut(real.expose()));
    let text = [&*forged[0], &*real[1], &*forged[2]].concat();
    let forged = Identity::from_pem("job", Member::Coordinator, &text).unwrap();
    let (verdicts, _) = handshake(
        token.client_config(ALPN).unwrap(),
        forged.joining_server_config(ALPN).unwrap(),
        forged.name_of(&Member::Coordinator).unwrap(),
    );
    says(verdicts.0, "not issued by this job's authority");
}
