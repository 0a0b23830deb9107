//! Members in separate network namespaces, as on several hosts, and links between them that are
//! cut. Needs root and `ip`; otherwise prints that it is skipped.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod members;
mod network;

use std::time::Duration;

use members::{Plan, Process, introduce, start};
use network::Network;
use ronde_schedule::Algorithm;

const PLAIN: Plan = Plan {
    is_tls: false,
    algorithm: None,
    until_it_fails: false,
};
const TLS: Plan = Plan {
    is_tls: true,
    ..PLAIN
};

/// Runs until it fails, by an algorithm.
fn by(algorithm: Algorithm, plan: Plan) -> Plan {
    Plan {
        algorithm: Some(algorithm),
        until_it_fails: true,
        ..plan
    }
}

#[test]
#[ignore = "the role of the processes that the other tests here start"]
fn member() {
    members::be();
}

#[test]
fn sums_between_hosts_are_right_over_tcp_and_tls() {
    let Some(network) = Network::new("sums", 4) else {
        return;
    };
    for (hosts, plan) in [
        (&[0, 1, 2, 3][..], PLAIN),
        (&[0, 1, 2, 3], TLS),
        (&[0, 0, 1, 1], PLAIN),
        (&[0, 0, 1, 1], TLS),
    ] {
        let mut members = start(&network, hosts, plan);
        introduce(&mut members);
        all_answer(&mut members, "running");
        for member in &mut members {
            member.send("on");
        }
        all_answer(&mut members, "fine");
    }
}

#[test]
fn a_link_that_is_cut_for_less_than_the_deadline_does_no_harm() {
    let Some(network) = Network::new("mended", 3) else {
        return;
    };
    let mut members = start(&network, &[0, 1, 2], PLAIN);
    introduce(&mut members);
    all_answer(&mut members, "running");
    network.cut(1);
    for member in &mut members {
        member.send("on");
    }
    // No member can have the sums meanwhile.
    pause(Duration::from_millis(300));
    network.mend(1);
    all_answer(&mut members, "fine");
}

#[expect(clippy::disallowed_methods, reason = "the link stays cut for a while")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn all_answer(members: &mut [Process], expected: &str) {
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.receive(), expected, "rank {rank}");
    }
}

/// Returns the answer of each member after `cut` runs in the middle of reducing.
fn answers(test: &str, hosts: &[usize], plan: Plan, cut: impl Fn(&Network)) -> Option<Vec<String>> {
    let network = Network::new(test, 4)?;
    let mut members = start(&network, hosts, plan);
    introduce(&mut members);
    all_answer(&mut members, "running");
    cut(&network);
    Some(members.iter_mut().map(Process::receive).collect())
}

/// Returns whether an answer names a rank: as late, or as lost, detected there or reported by a peer.
fn names(answer: &str, rank: usize) -> bool {
    let late = answer.contains(&format!("late {rank} in all_reduce"));
    let told_late = answer.contains(&format!(" s for group rank {rank};"));
    let lost = answer.contains(&format!("lost {rank} in all_reduce"));
    late || told_late || lost
}

/// Checks that one of the members detects the failure and notifies the others, and that all name one of the `culprits`.
fn check_named(answers: &[String], witnesses: &[usize], culprits: &[usize]) {
    let answers: Vec<&String> = witnesses.iter().map(|&rank| &answers[rank]).collect();
    let late = |rank: &usize| format!("late {rank} in all_reduce");
    let by_itself = |answer: &&String| culprits.iter().any(|rank| **answer == late(rank));
    assert!(answers.iter().any(by_itself), "{answers:?}");
    let named = |answer: &&String| culprits.iter().any(|&rank| names(answer, rank));
    assert!(answers.iter().all(named), "{answers:?}");
}

#[test]
fn a_host_that_is_cut_off_is_named_by_the_deadline() {
    // In a ring a rank receives from one peer only: the others report which rank they wait for.
    for plan in [
        by(Algorithm::Ring, PLAIN),
        by(Algorithm::HalvingDoubling, TLS),
        by(Algorithm::Direct, PLAIN),
    ] {
        let cut = |network: &Network| network.cut(2);
        let Some(answers) = answers("cut", &[0, 1, 2, 3], plan, cut) else {
            return;
        };
        check_named(&answers, &[0, 1, 3], &[2]);
        assert_eq!(answers[2], "lost 2 in all_reduce", "{answers:?}");
    }
}

#[test]
fn a_host_whose_packets_are_lost_in_one_direction_is_named_by_the_deadline() {
    for is_mute in [true, false] {
        for plan in [
            by(Algorithm::HalvingDoubling, PLAIN),
            by(Algorithm::Ring, TLS),
            by(Algorithm::Direct, PLAIN),
        ] {
            let cut = |network: &Network| {
                for other in [0, 1, 3] {
                    let (from, to) = if is_mute { (2, other) } else { (other, 2) };
                    network.cut_way(from, to);
                }
            };
            let Some(answers) = answers("way", &[0, 1, 2, 3], plan, cut) else {
                return;
            };
            // All of them, itself included: no host acknowledges its data, because it is not received, or
            // because it does not receive the acknowledgements.
            let names_2 = |answer: &String| names(answer, 2);
            assert!(answers.iter().all(names_2), "{answers:?}");
        }
    }
}

#[test]
fn a_path_that_is_cut_in_one_direction_is_reported_with_one_of_its_ends() {
    let cut = |network: &Network| network.cut_way(3, 1);
    let plan = by(Algorithm::Direct, PLAIN);
    let Some(answers) = answers("one-way", &[0, 1, 2, 3], plan, cut) else {
        return;
    };
    let named = |answer: &String| {
        [1, 3].iter().any(|rank| {
            let told = format!(" s for group rank {rank};");
            answer.contains(&told) || *answer == format!("late {rank} in all_reduce")
        })
    };
    assert!(answers.iter().all(named), "{answers:?}");
}

#[test]
fn two_hosts_that_are_cut_apart_name_each_other() {
    let apart = |network: &Network| network.cut(1);
    let Some(answers) = answers(
        "apart",
        &[0, 0, 1, 1],
        by(Algorithm::Hierarchical, PLAIN),
        apart,
    ) else {
        return;
    };
    check_named(&answers, &[0, 1], &[2, 3]);
    check_named(&answers, &[2, 3], &[0, 1]);
}

#[test]
fn a_host_that_cannot_be_reached_while_joining_is_named() {
    let Some(network) = Network::new("meet", 4) else {
        return;
    };
    let mut members = start(&network, &[0, 1, 2, 3], by(Algorithm::Direct, PLAIN));
    network.cut(2);
    introduce(&mut members);
    for rank in [0, 1, 3] {
        let answer = members[rank].receive();
        assert!(
            answer.contains("2 (10.77.0.3:") || answer.contains("rank 2 at 10.77.0.3:"),
            "rank {rank}: {answer}"
        );
    }
}
