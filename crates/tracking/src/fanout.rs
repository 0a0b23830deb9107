//! [`Fanout`]: forwards every event to several sinks.

use std::sync::Arc;

use ronde_core::{Event, Tracker};

/// Forwards every event to all of its sinks, in order.
#[derive(Clone, Default)]
pub struct Fanout(pub Vec<Arc<dyn Tracker>>);

impl Tracker for Fanout {
    fn record(&self, event: Event) {
        if let Some((last, others)) = self.0.split_last() {
            for sink in others {
                sink.record(event.clone());
            }
            last.record(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct EventRecorder(Mutex<Vec<Event>>);

    impl Tracker for EventRecorder {
        fn record(&self, event: Event) {
            self.0.lock().unwrap().push(event);
        }
    }

    #[test]
    fn all_sinks_receive_every_event() {
        let recorders: Vec<Arc<EventRecorder>> = (0..3).map(|_| Arc::default()).collect();
        let fanout = Fanout(
            recorders
                .iter()
                .map(|r| Arc::clone(r) as Arc<dyn Tracker>)
                .collect(),
        );
        let event = Event::Notice {
            rank: None,
            message: "hello".into(),
        };
        fanout.record(event.clone());
        Fanout::default().record(event.clone());
        for recorder in recorders {
            let seen = recorder.0.lock().unwrap();
            assert_eq!(*seen, std::slice::from_ref(&event));
        }
    }
}
