//! A coordinator with agents that connect over loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ronde_core::NullTracker;
use ronde_protocol::{CoordinatorId, JobRecord, Settings, Term, WorkerSlot};
use ronde_store::{RemoteSettings, StoreExt};

use super::*;
use crate::agent::{Agent, Invitation};
use crate::job::JobSpec;
use crate::long_wait::WaitSettings;

/// A limit that only a failure reaches.
const LIMIT: Duration = Duration::from_secs(120);

fn folder(path: &Path, settings: Settings) -> JobFolder {
    let spec = JobSpec {
        job: "job".to_owned(),
        task: String::new(),
        settings,
        command: Vec::new(),
        record: None,
        events: None,
    };
    JobFolder::create(path, &spec, &RemoteSettings::default()).unwrap()
}

/// Stores a record that another coordinator holds, which never renews its lease.
fn held_by_another(folder: &JobFolder) {
    let record = JobRecord {
        version: 1,
        term: Term(1),
        holder: Some(CoordinatorId(99)),
        ..JobRecord::default()
    };
    let file = crate::record_writer::encode(&record).unwrap();
    let name = folder.record_name().unwrap();
    folder.store().put(&name, &file).unwrap();
}

fn first_slot(folder: &JobFolder, host: &str) -> WorkerSlot {
    let invitation = Invitation::of(folder).unwrap();
    let wait = WaitSettings {
        timeout: LIMIT,
        notify: &mut |_| (),
    };
    let agent = Agent::join(invitation, host, 2, false, wait).unwrap();
    agent.remote.welcome.first
}

#[test]
fn a_host_that_joins_before_the_coordinator_leads_keeps_its_slots() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        lease: Duration::from_secs(1),
        ..Settings::new(2)
    };
    let folder = folder(dir.path(), settings);
    held_by_another(&folder);
    let (stop, led) = (StopFlag::new(), folder.clone());
    let (sender, address) = channel::<SocketAddr>();
    let coordinator = {
        let stop = stop.clone();
        thread::spawn(move || {
            let listen = (Ipv4Addr::LOCALHOST, 0).into();
            let mut ready = |address| sender.send(address).unwrap();
            coordinate(&led, listen, &NullTracker, &stop, &mut ready).unwrap()
        })
    };
    address.recv_timeout(LIMIT).unwrap();
    let slots = [first_slot(&folder, "a"), first_slot(&folder, "b")];
    assert_eq!(slots, [WorkerSlot(0), WorkerSlot(1000)]);
    // The next coordinator reads the same assignments.
    let mut stored = CoordinatorState::read(&folder).unwrap();
    for (host, slot) in ["a", "b"].into_iter().zip(slots) {
        assert_eq!(stored.first_slot(host, None), (slot, false));
    }
    stop.request(15);
    coordinator.join().unwrap();
}
