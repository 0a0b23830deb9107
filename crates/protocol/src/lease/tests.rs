//! Leases over one record, with replies that are lost or late.

use super::*;

const LENGTH: Duration = Duration::from_secs(4);
const TIMEOUT: Duration = Duration::from_secs(1);

fn seconds(s: f64) -> Time {
    Time((s * 1e9) as u64)
}

fn lease(me: u64) -> Lease {
    Lease::new(CoordinatorId(me), LENGTH, TIMEOUT)
}

/// Ticks at `now` and lets the store answer until there is no further request.
fn settle(lease: &mut Lease, stored: &mut JobRecord, now: Time) -> Vec<LeaseEvent> {
    let (event, mut request) = lease.tick(now);
    let mut events: Vec<LeaseEvent> = event.into_iter().collect();
    while let Some(asked) = request.take() {
        let (more, next) = lease.reply(now, stored.execute(asked));
        events.extend(more);
        request = next;
    }
    events
}

#[test]
fn a_free_lease_is_taken_renewed_and_kept_from_others() {
    let (mut stored, mut one, mut other) = (JobRecord::default(), lease(1), lease(2));
    assert_eq!(
        settle(&mut one, &mut stored, seconds(0.0)),
        [LeaseEvent::Taken]
    );
    assert!(one.leads(seconds(3.9)) && !one.leads(seconds(4.0)));
    let standing_by = settle(&mut other, &mut stored, seconds(0.1));
    assert_eq!(standing_by, [LeaseEvent::Other { term: Term(1) }]);
    for at in 1..20 {
        let now = seconds(f64::from(at));
        settle(&mut one, &mut stored, now);
        settle(&mut other, &mut stored, now);
        assert!(one.leads(now) && !other.leads(now), "at {at} s");
    }
    assert_eq!(stored.term, Term(1));
}

#[test]
fn a_vanished_holder_is_followed_only_when_its_own_time_is_over() {
    let (mut stored, mut one, mut other) = (JobRecord::default(), lease(1), lease(2));
    settle(&mut one, &mut stored, seconds(0.0));
    for tenth in 0..200 {
        let now = seconds(0.05 + f64::from(tenth) / 10.0);
        settle(&mut other, &mut stored, now);
        assert!(!(one.leads(now) && other.leads(now)));
    }
    assert!(other.leads(seconds(20.0)));
    assert_eq!(stored.term, Term(2));
    // The first one returns: it has lost its term and cannot publish.
    let request = one.propose(seconds(20.0), |record| {
        record.phase = crate::JobPhase::Finished
    });
    let (events, _) = one.reply(seconds(20.0), stored.execute(request));
    assert!(
        matches!(&events[..], [LeaseEvent::Lost { term: Term(2), .. }, ..]),
        "{events:?}"
    );
    assert_eq!(stored.phase, crate::JobPhase::Running);
}

#[test]
fn a_holder_that_has_ended_is_followed_at_once_and_its_last_change_is_done_or_refused() {
    for is_done_first in [false, true] {
        let (mut stored, mut one, mut other) = (JobRecord::default(), lease(1), lease(2));
        settle(&mut one, &mut stored, seconds(0.0));
        let last = one.propose(seconds(0.1), |record| {
            record.checkpoint = Some(ronde_core::Step(7))
        });
        settle(&mut other, &mut stored, seconds(0.2));
        // The end of an unrelated coordinator has no effect.
        other.ended(CoordinatorId(3));
        settle(&mut other, &mut stored, seconds(0.3));
        assert!(!other.leads(seconds(0.3)));
        other.ended(CoordinatorId(1));
        let (_, read) = other.tick(seconds(0.4));
        let (_, swap) = other.reply(seconds(0.4), stored.execute(read.unwrap()));
        if is_done_first {
            stored.execute(last.clone());
        }
        let (_, swap) = other.reply(seconds(0.5), stored.execute(swap.unwrap()));
        let swapped = swap.map(|swap| other.reply(seconds(0.5), stored.execute(swap)));
        assert_eq!(swapped.is_some(), is_done_first);
        assert!(other.leads(seconds(0.5)));
        let replied = stored.execute(last);
        assert_eq!(replied.record.holder, Some(CoordinatorId(2)));
        assert_eq!(stored.term, Term(2));
        assert_eq!(stored.checkpoint.is_some(), is_done_first);
    }
}

#[test]
fn a_change_whose_answer_is_lost_is_found_by_reading() {
    let (mut stored, mut one) = (JobRecord::default(), lease(1));
    settle(&mut one, &mut stored, seconds(0.0));
    let lost = one.propose(seconds(0.5), |record| {
        record.checkpoint = Some(ronde_core::Step(7))
    });
    stored.execute(lost);
    assert!(one.tick(seconds(1.4)).1.is_none());
    let events = settle(&mut one, &mut stored, seconds(1.5));
    assert_eq!(events[0], LeaseEvent::Published);
    assert_eq!(one.record().checkpoint, Some(ronde_core::Step(7)));
    // Counted from when the change was sent, or from the renewal that followed.
    assert!(one.leads(seconds(4.4)));
}

#[test]
fn a_change_that_was_not_done_yet_does_not_prolong_the_lease() {
    let (mut stored, mut one) = (JobRecord::default(), lease(1));
    settle(&mut one, &mut stored, seconds(0.0));
    let late = one.propose(seconds(3.0), |record| {
        record.checkpoint = Some(ronde_core::Step(7))
    });
    // The read overtakes the change.
    let (_, read) = one.tick(seconds(4.1));
    let (_, renewal) = one.reply(seconds(4.1), stored.execute(read.unwrap()));
    assert!(
        !one.leads(seconds(4.1)),
        "the change has not been seen by anybody"
    );
    assert!(renewal.is_none());
    stored.execute(late);
    let (_, read) = one.tick(seconds(4.9));
    let (events, _) = one.reply(seconds(4.9), stored.execute(read.unwrap()));
    assert_eq!(events, [LeaseEvent::Taken]);
    assert!(one.leads(seconds(6.9)) && !one.leads(seconds(7.0)));
}
