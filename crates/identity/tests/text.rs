//! Written values are read back, nothing else is, and secrets do not show.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use ronde_core::{Rank, Recovery};
use ronde_identity::{Authority, Identity, IdentityError, JoinToken, Member, Validity};

const RANK_1: Member = Member::Rank(Rank(1));

fn today() -> Validity {
    Validity::from_now(SystemTime::now(), Duration::from_secs(3600))
}

#[test]
fn an_authority_is_read_back_and_goes_on_signing() {
    let first = Authority::new("job", today()).unwrap();
    let again = Authority::from_pem("job", first.to_pem().expose()).unwrap();
    assert_eq!(again.fingerprint(), first.fingerprint());
    assert_eq!(again.certificate_pem(), first.certificate_pem());
    let member = again.issue(&RANK_1, today()).unwrap();
    assert_eq!(member.authority(), first.fingerprint());
    let other = Authority::new("jo", today()).unwrap();
    for text in [
        other.to_pem().expose(),
        member.to_pem().expose(),
        &first.certificate_pem(),
        "",
    ] {
        let error = Authority::from_pem("job", text).unwrap_err();
        assert!(matches!(error, IdentityError::Pem { .. }), "{error}");
        assert_eq!(error.recovery(), Recovery::Abort);
    }
    let of_another = Authority::from_pem("jo", first.to_pem().expose()).unwrap_err();
    assert!(
        of_another
            .to_string()
            .contains("not the authority of job jo")
    );
}

#[test]
fn an_identity_is_read_back_as_its_own_member_only() {
    let authority = Authority::new("job", today()).unwrap();
    let text = authority.issue(&RANK_1, today()).unwrap().to_pem();
    let mine = Identity::from_pem("job", RANK_1, text.expose()).unwrap();
    assert_eq!((mine.job(), mine.member()), ("job", &RANK_1));
    assert_eq!(mine.to_pem().expose(), text.expose());
    for (job, member) in [
        ("job", Member::Rank(Rank(11))),
        ("job2", RANK_1),
        ("job", Member::Coordinator),
        ("job", Member::Host("rank-1".to_owned())),
    ] {
        let error = Identity::from_pem(job, member, text.expose()).unwrap_err();
        assert!(
            matches!(error, IdentityError::OtherMember { .. }),
            "{error}"
        );
    }
    // Another member's key.
    let other = authority.issue(&RANK_1, today()).unwrap().to_pem();
    let cut = "-----BEGIN PRIVATE KEY";
    let (head, _) = text.expose().split_once(cut).unwrap();
    let (_, tail) = other.expose().split_once(cut).unwrap();
    assert!(Identity::from_pem("job", RANK_1, &format!("{head}{cut}{tail}")).is_err());
}

#[test]
fn secrets_do_not_show() {
    let authority = Authority::new("job", today()).unwrap();
    let identity = authority.issue(&RANK_1, today()).unwrap();
    let token = authority.join_token().unwrap();
    let (key, own_key) = (authority.to_pem(), identity.to_pem());
    let word = token.to_text();
    let secret = word.expose().split('.').nth(1).unwrap().to_owned();
    let shown = format!("{authority:?} {identity:?} {token:?} {key:?} {own_key:?} {word:?}");
    assert!(
        !shown.contains(&secret) && !shown.contains("PRIVATE"),
        "{shown}"
    );
    assert!(shown.contains(&authority.fingerprint().to_string()));
    // Errors about broken text do not repeat it.
    let broken = own_key.expose().replace("PRIVATE KEY", "SECRET STUFF");
    let error = Identity::from_pem("job", RANK_1, &broken).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("SECRET"), "{error}");
}

#[test]
fn tokens_are_random_and_match_only_themselves() {
    let authority = Authority::new("job", today()).unwrap();
    let (one, other) = (
        authority.join_token().unwrap(),
        authority.join_token().unwrap(),
    );
    let again: JoinToken = format!(" {}\n", one.to_text().expose()).parse().unwrap();
    assert!(one.matches(&again));
    assert!(!one.matches(&other));
    let elsewhere = Authority::new("job", today()).unwrap();
    let text = one.to_text();
    let moved = text.expose().replace(
        &authority.fingerprint().to_string(),
        &elsewhere.fingerprint().to_string(),
    );
    assert!(!one.matches(&moved.parse().unwrap()));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}", tail in "[0-9a-f.]{0,140}") {
        prop_assert!(text.parse::<JoinToken>().is_err());
        let _ = format!("ronde-join-1.{tail}").parse::<JoinToken>();
        prop_assert!(Identity::from_pem("job", RANK_1, &text).is_err());
        prop_assert!(Authority::from_pem("job", &text).is_err());
    }

    #[test]
    fn broken_pem_is_refused(at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<bool>()) {
        let authority = Authority::new("job", today()).unwrap();
        let text = authority.issue(&RANK_1, today()).unwrap().to_pem();
        let mut bytes = text.expose().as_bytes().to_vec();
        // Without its last newline a text is whole.
        let at = at.index(bytes.len() - 1);
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] = to & 0x7f;
        }
        let broken = String::from_utf8(bytes).unwrap();
        if cut {
            prop_assert!(Identity::from_pem("job", RANK_1, &broken).is_err());
        } else {
            let _ = Identity::from_pem("job", RANK_1, &broken);
        }
    }
}
