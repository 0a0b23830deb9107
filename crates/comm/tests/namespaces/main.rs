//! Members in network namespaces of their own, as on several hosts, and links that are cut between
//! them. Needs root and `ip`; says so and tests nothing where they are missing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

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

/// Until it fails, by an algorithm.
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
        all_hear(&mut members, "running");
        for member in &mut members {
            member.tell("on");
        }
        all_hear(&mut members, "fine");
    }
}

#[test]
fn a_link_that_is_cut_for_less_than_the_deadline_does_no_harm() {
    let Some(network) = Network::new("mended", 3) else {
        return;
    };
    let mut members = start(&network, &[0, 1, 2], PLAIN);
    introduce(&mut members);
    all_hear(&mut members, "running");
    network.cut(1);
    for member in &mut members {
        member.tell("on");
    }
    // Nobody can have the sums meanwhile.
    pause(Duration::from_millis(300));
    network.mend(1);
    all_hear(&mut members, "fine");
}

#[expect(
    clippy::disallowed_methods,
    reason = "what is cut stays so for a while"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn all_hear(members: &mut [Process], expected: &str) {
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.hear(), expected, "rank {rank}");
    }
}

/// What each member says once `cut` is done in the middle of reducing.
fn answers(test: &str, hosts: &[usize], plan: Plan, cut: impl Fn(&Network)) -> Option<Vec<String>> {
    let network = Network::new(test, 4)?;
    let mut members = start(&network, hosts, plan);
    introduce(&mut members);
    all_hear(&mut members, "running");
    cut(&network);
    Some(members.iter_mut().map(Process::hear).collect())
}

/// Whether an answer names a rank: as late, or as lost, found out here or told by another.
fn names(answer: &str, rank: usize) -> bool {
    let late = answer.contains(&format!("late {rank} in all_reduce"));
    let told_late = answer.contains(&format!(" s for group rank {rank};"));
    let lost = answer.contains(&format!("lost {rank} in all_reduce"));
    late || told_late || lost
}

/// One of them finds out first and tells the others, and all name one of the `culprits`.
fn check_named(answers: &[String], witnesses: &[usize], culprits: &[usize]) {
    let answers: Vec<&String> = witnesses.iter().map(|&rank| &answers[rank]).collect();
    let late = |rank: &usize| format!("late {rank} in all_reduce");
    let by_itself = |answer: &&String| culprits.iter().any(|rank| **answer == late(rank));
    assert!(answers.iter().any(by_itself), "{answers:?}");
    let named = |answer: &&String| culprits.iter().any(|&rank| names(answer, rank));
    assert!(answers.iter().all(named), "{answers:?}");
}

#[test]
fn a_host_that_is_cut_off_is_told_by_the_deadline_by_name() {
    // In a ring a rank hears of one other only: it is told by the others whom they wait for.
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
fn a_host_that_is_not_heard_or_hears_nothing_is_told_by_the_deadline_by_name() {
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
            // All of them, itself included: nobody acknowledges what it sends, for it is not heard, or
            // it does not hear that.
            let names_2 = |answer: &String| names(answer, 2);
            assert!(answers.iter().all(names_2), "{answers:?}");
        }
    }
}

#[test]
fn one_way_between_two_hosts_that_is_cut_is_told_with_one_of_them() {
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
fn a_host_that_cannot_be_reached_when_members_meet_is_told_by_name() {
    let Some(network) = Network::new("meet", 4) else {
        return;
    };
    let mut members = start(&network, &[0, 1, 2, 3], by(Algorithm::Direct, PLAIN));
    network.cut(2);
    introduce(&mut members);
    for rank in [0, 1, 3] {
        let answer = members[rank].hear();
        assert!(
            answer.contains("2 (10.77.0.3:") || answer.contains("rank 2 at 10.77.0.3:"),
            "rank {rank}: {answer}"
        );
    }
}
