//! Members that enter a generation together, in memory.

use ronde_core::batch::BatchPlan;
use ronde_core::shards::ShardPlan;
use ronde_core::{Generation, GroupRank, Shard, WorldSize};

use super::*;
use crate::transaction::{OpenStep, RankInGroup, ShardReport};

const ELEMENTS: usize = 12;

/// A member: its log, the elements that it has, whether it has kept the gradient of its next step.
struct Member {
    log: Transaction,
    slices: SliceExchange,
    holds_gradient: bool,
}

fn log(rank: u32, ranks: u32) -> Transaction {
    let batches = BatchPlan::new(8, 8, false, false, 1).unwrap();
    let place = RankInGroup {
        rank: GroupRank(rank),
        ranks: ranks as usize,
    };
    Transaction::new(place, Generation(1), batches, shards(ranks))
}

fn shards(ranks: u32) -> ShardPlan {
    ShardPlan::with_spares(2, WorldSize::new(ranks).unwrap(), 2).unwrap()
}

fn step(log: &Transaction, shard: u32, samples: &[u64]) -> OpenStep {
    let mut open = log.begin_step();
    let report = ShardReport {
        samples: samples.len() as u64,
        targets: samples.len() as u64,
        ..ShardReport::empty(Shard(shard))
    };
    open.record(report, samples);
    open
}

/// Three members after the first step of two: the first has its outcome, the second only its gradient, the third is new.
fn members(slices: [HeldRanges; 3]) -> [Member; 3] {
    let (mut first, second) = (log(0, 2), log(1, 2));
    let open = step(&first, 0, &[0, 1, 2, 3]);
    let other = step(&second, 1, &[4, 5, 6, 7]);
    let votes = [first.vote(&open), second.vote(&other)].concat();
    first.commit(&open, votes).unwrap();
    let mut logs = [first, second, log(2, 3)].into_iter();
    let mut slices = slices.into_iter();
    [false, true, false].map(|holds_gradient| Member {
        log: logs.next().unwrap(),
        slices: SliceExchange::new(slices.next().unwrap()),
        holds_gradient,
    })
}

impl Member {
    fn state(&self) -> MemberState {
        let next = self.log.next_step();
        MemberState {
            has_state: next > Step(0) && self.log.is_complete(),
            term: 0,
            next,
            holds_gradient: self.holds_gradient,
            held: self.slices.held().clone(),
        }
    }
}

/// Lets all members enter the next generation. Returns the names of the actions of each.
fn enter(
    members: &mut [Member],
    is_divided: bool,
    layout: &[HeldRanges],
) -> Result<Vec<Vec<String>>, RejoinError> {
    let ranks = members.len();
    let mut entries: Vec<Rejoin> = (0..ranks)
        .map(|rank| Rejoin::new(rank, ELEMENTS, is_divided))
        .collect();
    let mut answers = vec![RejoinAnswer::Done; ranks];
    let mut asked = vec![Vec::new(); ranks];
    let mut waiting: Vec<Option<RejoinAsk>> = vec![None; ranks];
    loop {
        for (rank, member) in members.iter_mut().enumerate() {
            while waiting[rank].is_none() {
                let answer = std::mem::replace(&mut answers[rank], RejoinAnswer::Done);
                let ask = entries[rank].next(&mut member.log, &mut member.slices, answer)?;
                let text = format!("{ask:?}");
                let name = text.split([' ', '(', '{']).next().unwrap_or_default();
                asked[rank].push(name.to_owned());
                match ask {
                    RejoinAsk::GiveUpState => member.log.give_up_state(),
                    RejoinAsk::ChooseLayout(_) => {
                        answers[rank] = RejoinAnswer::Layout(layout.to_vec());
                    }
                    RejoinAsk::Healed => member.log.healed(0),
                    RejoinAsk::ExchangeReports => {
                        let place = RankInGroup {
                            rank: GroupRank(rank as u32),
                            ranks,
                        };
                        let all = shards(ranks as u32);
                        member.log.enter(place, Generation(2), all);
                        waiting[rank] = Some(ask);
                    }
                    RejoinAsk::ExchangeStates
                    | RejoinAsk::ExchangeSnapshot(_)
                    | RejoinAsk::ExchangeSlices(_)
                    | RejoinAsk::Confirm
                    | RejoinAsk::Continue => waiting[rank] = Some(ask),
                    _ => {}
                }
            }
        }
        let kinds: Vec<_> = waiting
            .iter()
            .flatten()
            .map(std::mem::discriminant)
            .collect();
        assert!(
            kinds.iter().all(|kind| *kind == kinds[0]),
            "members wait for different exchanges: {waiting:?}"
        );
        match exchanged(members, &mut waiting) {
            Some(answer) => answers = vec![answer; ranks],
            None => return Ok(asked),
        }
    }
}

/// Exchanges between members that all wait for the same; `None` if they continue.
fn exchanged(members: &[Member], waiting: &mut [Option<RejoinAsk>]) -> Option<RejoinAnswer> {
    let (mut bytes, mut words) = (Vec::new(), Vec::new());
    for (member, ask) in members.iter().zip(waiting) {
        match ask.take() {
            Some(RejoinAsk::Continue) => return None,
            Some(RejoinAsk::ExchangeStates) => words.extend(member.state().encode()),
            Some(RejoinAsk::ExchangeReports) => {
                bytes.extend(member.log.report(member.holds_gradient));
            }
            Some(RejoinAsk::ExchangeSnapshot(mine)) => bytes.extend(mine),
            Some(RejoinAsk::ExchangeSlices(mine)) => words.extend(mine),
            _ => {}
        }
    }
    Some(match (bytes.is_empty(), words.is_empty()) {
        (false, _) => RejoinAnswer::Bytes(bytes),
        (_, false) => RejoinAnswer::Words(words),
        _ => RejoinAnswer::Done,
    })
}

fn held(range: std::ops::Range<usize>) -> HeldRanges {
    HeldRanges::new([range])
}

#[test]
fn a_missed_step_is_applied_before_it_is_reported_and_a_new_member_copies_the_state() {
    let all = || held(0..ELEMENTS);
    let mut members = members([all(), all(), all()]);
    let asked = enter(&mut members, false, &[]).unwrap();
    let begin = ["ExchangeStates", "ExchangeReports", "ExchangeSnapshot"];
    let end = ["Report", "Assign", "Copy", "Continue"];
    assert_eq!(asked[0], [&begin[..], &end].concat());
    assert_eq!(asked[1], [&begin[..], &["Apply"], &end].concat());
    assert_eq!(asked[2], asked[0]);
    for member in &members {
        assert_eq!(member.log.next_step(), Step(1));
    }
    assert!(members[0].log.is_complete() && members[1].log.is_complete());
    assert!(!members[2].log.is_complete(), "its copy is under way");
}

#[test]
fn a_divided_state_moves_before_anybody_gives_up_what_it_had() {
    let mut members = members([held(0..6), held(6..ELEMENTS), held(0..0)]);
    let layout = [held(0..4), held(4..8), held(8..ELEMENTS)];
    let asked = enter(&mut members, true, &layout).unwrap();
    let slices = ["ExchangeSlices", "ChooseLayout", "Move"];
    let end = ["GatherWeights", "Confirm", "Keep", "Continue"];
    let from_assign = |rank: usize| {
        let at = asked[rank]
            .iter()
            .position(|name| name == "Assign")
            .unwrap();
        &asked[rank][at + 1..]
    };
    assert_eq!(from_assign(0), [&slices[..], &end].concat());
    assert_eq!(from_assign(1), [&slices[..], &end].concat());
    assert_eq!(from_assign(2), [&slices[..], &["Healed"], &end].concat());
    for (member, wanted) in members.iter().zip(&layout) {
        assert_eq!(member.slices.held(), wanted);
        assert!(member.log.is_complete());
    }
}

#[test]
fn members_without_a_complete_state_load_one() {
    // The elements from 6 on were lost.
    let mut members = members([held(0..6), held(0..6), held(0..0)]);
    let error = enter(&mut members, true, &vec![held(0..ELEMENTS); 3]).unwrap_err();
    assert!(
        matches!(error, RejoinError::Slices(SliceExchangeError::Lost(_))),
        "{error}"
    );
    let first = &mut members[0];
    let mut entry = Rejoin::new(0, ELEMENTS, true);
    let mut next = |answer| {
        entry
            .next(&mut first.log, &mut first.slices, answer)
            .unwrap()
    };
    assert_eq!(next(RejoinAnswer::Done), RejoinAsk::ExchangeStates);
    let mut alone = MemberState {
        has_state: true,
        term: 0,
        next: Step(1),
        holds_gradient: false,
        held: held(0..6),
    };
    let asked = next(RejoinAnswer::Words(alone.encode()));
    assert_eq!(asked, RejoinAsk::WaitForState);
    let asked = next(RejoinAnswer::Done);
    assert_eq!(asked, RejoinAsk::Load(StateSource::Checkpoint));
    assert_eq!(next(RejoinAnswer::Done), RejoinAsk::ExchangeReports);
    // A later state, that the others lack, is given up.
    alone.held = held(0..ELEMENTS);
    alone.next = Step(0);
    alone.holds_gradient = true;
    let mut entry = Rejoin::new(0, ELEMENTS, true);
    let mut next = |answer| {
        entry
            .next(&mut first.log, &mut first.slices, answer)
            .unwrap()
    };
    next(RejoinAnswer::Done);
    let asked = next(RejoinAnswer::Words(
        MemberState {
            next: Step(0),
            ..alone
        }
        .encode(),
    ));
    assert_eq!(asked, RejoinAsk::GiveUpState);
}

#[test]
fn an_answer_to_another_question_is_refused() {
    let mut members = members([held(0..1), held(0..1), held(0..1)]);
    let first = &mut members[0];
    let mut entry = Rejoin::new(0, 1, false);
    let mut next = |answer| entry.next(&mut first.log, &mut first.slices, answer);
    assert_eq!(next(RejoinAnswer::Done).unwrap(), RejoinAsk::ExchangeStates);
    let error = next(RejoinAnswer::Words(vec![7])).unwrap_err();
    assert!(matches!(error, RejoinError::State), "{error}");
    let error = next(RejoinAnswer::Done).unwrap_err();
    assert!(
        matches!(error, RejoinError::Answer),
        "the order is over: {error}"
    );
}
