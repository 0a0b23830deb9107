//! Fixed members as threads that meet, and some that do not fit.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

/// Returns a rendezvous address with a free port.
fn free_address() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().to_string()
}

fn fixed(rank: u32, size: u32, rendezvous: &str) -> FixedRank {
    FixedRank {
        job: "job".to_owned(),
        rank: Rank(rank),
        world_size: WorldSize::new(size).unwrap(),
        rendezvous: rendezvous.to_owned(),
        token: "the secret of this job".to_owned(),
    }
}

fn meet(mine: &FixedRank, timeout: Duration) -> Result<Assignment, String> {
    let data = |ip| Ok(SocketAddr::new(ip, 5000 + mine.rank.0 as u16));
    let task = format!("the task of rank {}", mine.rank);
    let wait = WaitSettings {
        timeout,
        notify: &mut |_| (),
    };
    let member = FixedMember::meet(mine, &task, data, wait);
    let member = member.map_err(|error| error.to_string())?;
    Ok(member.next(None).unwrap())
}

#[test]
fn all_members_get_the_same_peers_and_the_task_of_rank_0() {
    let address = free_address();
    // Rank 0 begins last, and a client that is not a member connects.
    let ranks = [3, 1, 2, 0].map(|rank| {
        let mine = fixed(rank, 4, &address);
        thread::spawn(move || meet(&mine, LIMIT).unwrap())
    });
    while TcpStream::connect(&address).is_ok_and(|mut stream| stream.write_all(b"GET\n").is_err()) {
    }
    for assignment in ranks.map(|rank| rank.join().unwrap()) {
        let rank = assignment.rank.0;
        assert_eq!(assignment.task, "the task of rank 0");
        let ports: Vec<u16> = assignment.peers.iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [5000, 5001, 5002, 5003]);
        assert_eq!(
            (assignment.local_rank, assignment.local_world_size),
            (rank, 4)
        );
        assert_eq!(assignment.policy, MembershipPolicy::Fixed);
    }
}

#[test]
fn members_that_do_not_fit_are_refused_with_the_reason() {
    let address = free_address();
    let mine = fixed(0, 2, &address);
    let first = thread::spawn(move || meet(&mine, LIMIT));
    let good = fixed(1, 2, &address);
    let cases = [
        (
            FixedRank {
                token: "guess".to_owned(),
                ..good.clone()
            },
            "wrong token",
        ),
        (
            FixedRank {
                token: String::new(),
                ..good.clone()
            },
            "no answer from rank 0",
        ),
        (
            FixedRank {
                job: "other".to_owned(),
                ..good.clone()
            },
            "belongs to job `job`",
        ),
        (fixed(1, 3, &address), "expects 2 workers, not 3"),
        (fixed(2, 2, &address), "rank 2 is invalid or taken"),
    ];
    for (other, expected) in cases {
        let error = meet(&other, LIMIT).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(meet(&good, LIMIT).unwrap().rank, Rank(1));
    assert_eq!(first.join().unwrap().unwrap().rank, Rank(0));
}

#[test]
fn missing_members_are_named_to_those_that_came() {
    let address = free_address();
    let short = Duration::from_millis(300);
    let mine = fixed(0, 4, &address);
    let first = thread::spawn(move || meet(&mine, short));
    let came = meet(&fixed(2, 4, &address), LIMIT).unwrap_err();
    let expected = "not ready in time: rank 1, 3";
    assert!(came.ends_with(expected), "{came}");
    let error = first.join().unwrap().unwrap_err();
    assert!(
        error.ends_with(expected) && error.contains(&address),
        "{error}"
    );
}

#[test]
fn an_absent_rank_0_and_an_invalid_address_are_reported() {
    let absent = fixed(1, 2, &free_address());
    let error = meet(&absent, Duration::from_millis(120)).unwrap_err();
    assert!(error.contains("cannot reach rank 0 in time"), "{error}");
    let error = meet(&fixed(0, 1, "nowhere"), LIMIT).unwrap_err();
    assert!(
        error.contains("invalid address `nowhere`: expected HOST:PORT"),
        "{error}"
    );
}

#[test]
fn no_generation_follows_the_first_one() {
    let assignment = meet(&fixed(0, 1, &free_address()), LIMIT).unwrap();
    let member = FixedMember {
        assignment,
        identity: None,
    };
    assert_eq!(member.pending(), None);
    let departure = Departure {
        left: Generation::FIRST,
        cause: "lost rank 1".to_owned(),
        unreachable: None,
    };
    let error = member.next(Some(departure)).unwrap_err();
    assert!(error.to_string().ends_with("lost rank 1"), "{error}");
}

#[test]
fn a_member_proves_its_rank_and_a_short_secret_is_for_one_host_only() {
    let identity = |rank: u32| fixed(rank, 3, "127.0.0.1:1").identity().unwrap().unwrap();
    assert_eq!(identity(0).authority(), identity(2).authority());
    let mine = FixedRank {
        token: "short".to_owned(),
        ..fixed(0, 2, "127.0.0.1:1")
    };
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let near = [at("127.0.0.1:1"), at("127.0.0.1:2")];
    assert_eq!(check_secret(&mine, &near), Ok(()));
    let far = check_secret(&mine, &[at("10.0.0.1:1"), at("10.0.0.2:1")]).unwrap_err();
    assert!(
        far.contains("5 characters") && far.contains("openssl"),
        "{far}"
    );
    assert_eq!(
        check_secret(&fixed(0, 2, "10.0.0.1:1"), &[at("10.0.0.1:1")]),
        Ok(())
    );
}

#[test]
fn a_name_without_an_address_is_waited_for_and_reported() {
    for rank in [0, 1] {
        let mine = fixed(rank, 2, "no-such-host.invalid:4711");
        let mut said = Vec::new();
        let wait = WaitSettings {
            timeout: Duration::from_secs(4),
            notify: &mut |message| said.push(message),
        };
        let data = |ip| Ok(SocketAddr::new(ip, 5000));
        let error = FixedMember::meet(&mine, "", data, wait).unwrap_err();
        let problem = "cannot resolve the name `no-such-host.invalid`: ";
        let late = ["cannot listen in time: ", "cannot reach rank 0 in time: "][rank as usize];
        assert!(
            error.to_string().contains(&format!("{late}{problem}")),
            "{error}"
        );
        assert!(
            said.iter()
                .all(|message| message.starts_with("waiting for "))
        );
        // A resolver that is slow itself uses all of the time.
        let is_slow = error.to_string().contains("did not answer");
        assert!(
            is_slow || said.iter().any(|message| message.contains(problem)),
            "{said:?}"
        );
    }
}
