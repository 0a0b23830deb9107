//! [`FaultRecovery`]: the times until a run detected a fault, continued, and was complete again.

use serde_json::Value;

use super::fault_kind::FaultKind;

/// A fault that was applied to a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct AppliedFault {
    pub(super) kind: FaultKind,
    /// The time, in seconds since 1970.
    pub(super) at: f64,
    /// The number of killed processes.
    pub(super) killed: u64,
}

/// The times of a recovery, in seconds after the fault; `None` if the event did not occur. If only the coordinator was
/// killed, training does not pause: the times are then those until another coordinator is started, leads, and
/// reports the next step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FaultRecovery {
    pub(super) kind: FaultKind,
    /// The time until the loss was detected. `None` if another fault occurred first or the run ended.
    pub(super) noticed_s: Option<f64>,
    /// The time until the first step was committed without the worker.
    pub(super) on_s: Option<f64>,
    /// The time until the first step was committed with all workers again.
    pub(super) complete_s: Option<f64>,
}

/// Returns the time of an event.
fn time(event: &Value) -> f64 {
    event["t"].as_f64().unwrap_or_default()
}

/// Returns the recovery of each fault.
pub(super) fn recoveries(
    events: &[Value],
    applied: &[AppliedFault],
    workers: u32,
) -> Vec<FaultRecovery> {
    let ends = applied.iter().skip(1).map(|next| next.at);
    let ends = ends.chain([f64::INFINITY]);
    let one = |(strike, end): (&AppliedFault, f64)| {
        if strike.kind == FaultKind::Coordinator {
            return succession(events, strike, end);
        }
        // The event has the time from the detection of the loss to the first step after it.
        let recovered = events
            .iter()
            .filter(|event| event["event"] == "recovered")
            .map(|event| {
                (
                    time(event) - event["duration_s"].as_f64().unwrap_or_default(),
                    time(event),
                )
            })
            .find(|(noticed, _)| (strike.at..end).contains(noticed));
        FaultRecovery {
            kind: strike.kind,
            noticed_s: recovered.map(|(noticed, _)| noticed - strike.at),
            on_s: recovered.map(|(_, on)| on - strike.at),
            complete_s: complete(events, strike.at, workers)
                .filter(|at| *at < end)
                .map(|at| at - strike.at),
        }
    };
    applied.iter().zip(ends).map(one).collect()
}

/// Returns the recovery after the loss of a coordinator.
fn succession(events: &[Value], strike: &AppliedFault, end: f64) -> FaultRecovery {
    let after = |at: Option<f64>, is: &dyn Fn(&Value) -> bool| {
        let since = |event: &&Value| at.is_some_and(|at| time(event) >= at) && time(event) < end;
        events.iter().filter(since).find(|e| is(e)).map(time)
    };
    let says = |event: &Value, words| event["message"].as_str().is_some_and(|m| m.contains(words));
    let noticed = after(Some(strike.at), &|e| says(e, "the coordinator ended"));
    let leads = after(noticed, &|e| says(e, "this coordinator leads"));
    let step = after(leads, &|e| e["event"] == "step_committed");
    let seconds = |at: Option<f64>| at.map(|at| at - strike.at);
    FaultRecovery {
        kind: strike.kind,
        noticed_s: seconds(noticed),
        on_s: seconds(leads),
        complete_s: seconds(step),
    }
}

/// Returns the time of the first step that was committed by all workers in a generation that began after `after`.
fn complete(events: &[Value], after: f64, workers: u32) -> Option<f64> {
    let generation = events.iter().find(|event| {
        event["event"] == "membership_changed"
            && event["world_size"] == workers
            && time(event) > after
    })?;
    let is_of_it = |event: &&Value| {
        event["event"] == "step_committed"
            && event["generation"].as_u64() >= generation["generation"].as_u64()
    };
    events.iter().find(is_of_it).map(time)
}

/// Returns the seconds from the start of each replacement process to the first step in which it took part.
pub(super) fn replacements(events: &[Value]) -> Vec<f64> {
    let is = |event: &Value, kind: &str| event["event"] == kind;
    let mut found = Vec::new();
    for (at, started) in events.iter().enumerate() {
        let is_first = !events[..at].iter().any(|event| is(event, "step_committed"));
        if !is(started, "worker_started") || is_first {
            continue;
        }
        let healed = events[at..]
            .iter()
            .find(|event| is(event, "resumed") && event["healed"].as_u64() > Some(0));
        let first = healed.and_then(|healed| {
            events[at..].iter().find(|event| {
                is(event, "step_committed") && event["generation"] == healed["generation"]
            })
        });
        found.extend(first.map(|first| time(first) - time(started)));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fault_is_tracked_until_all_workers_take_part_again() {
        let step = |t: f64, generation: u64| json!({"t": t, "event": "step_committed", "generation": generation});
        let events = [
            step(9.0, 1),
            json!({"t": 10.25, "event": "membership_changed", "generation": 2, "world_size": 3}),
            step(10.5, 2),
            json!({"t": 10.5, "event": "recovered", "duration_s": 0.25}),
            json!({"t": 11.0, "event": "worker_started"}),
            json!({"t": 12.0, "event": "membership_changed", "generation": 3, "world_size": 4}),
            json!({"t": 12.5, "event": "resumed", "generation": 3, "healed": 1}),
            step(13.0, 3),
        ];
        let strike = |at| AppliedFault {
            kind: FaultKind::Kill,
            at,
            killed: 1,
        };
        let found = recoveries(&events, &[strike(10.0), strike(20.0)], 4);
        let expected = FaultRecovery {
            kind: FaultKind::Kill,
            noticed_s: Some(0.25),
            on_s: Some(0.5),
            complete_s: Some(3.0),
        };
        assert_eq!(found[0], expected);
        assert_eq!((found[1].noticed_s, found[1].complete_s), (None, None));
        assert_eq!(replacements(&events), [2.0]);
    }

    #[test]
    fn the_loss_of_a_coordinator_is_tracked_until_the_next_one_leads() {
        let says = |t: f64, message: &str| json!({"t": t, "event": "notice", "message": message});
        let events = [
            says(9.0, "this coordinator leads: term 1"),
            says(10.25, "the coordinator ended (signal: 9)"),
            json!({"t": 10.5, "event": "step_committed", "generation": 1}),
            says(14.0, "this coordinator leads: term 2"),
            json!({"t": 14.5, "event": "step_committed", "generation": 1}),
        ];
        let strike = AppliedFault {
            kind: FaultKind::Coordinator,
            at: 10.0,
            killed: 0,
        };
        let found = recoveries(&events, &[strike], 4);
        let expected = FaultRecovery {
            kind: FaultKind::Coordinator,
            noticed_s: Some(0.25),
            on_s: Some(4.0),
            complete_s: Some(4.5),
        };
        assert_eq!(found, [expected]);
    }
}
