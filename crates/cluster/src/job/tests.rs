//! Jobs on disk.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn spec() -> JobSpec {
    JobSpec {
        job: "job-1".to_owned(),
        task: "a task".to_owned(),
        settings: Settings::new(2),
        command: Vec::new(),
        record: None,
        events: None,
    }
}

#[test]
fn a_job_reads_back_and_keeps_its_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job");
    let made = JobFolder::create(&path, &spec(), &RemoteSettings::default()).unwrap();
    let again = JobFolder::open(&path, &RemoteSettings::default()).unwrap();
    assert_eq!(again.spec(), &spec());
    assert!(made.token().unwrap().matches(&again.token().unwrap()));
    let prints = [&made, &again].map(|of| of.credentials().unwrap().0.fingerprint());
    assert_eq!(prints[0], prints[1]);
    for secret in [AUTHORITY_FILE, TOKEN_FILE] {
        let mode = std::fs::metadata(path.join(secret))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let twice = JobFolder::create(&path, &spec(), &RemoteSettings::default());
    assert!(
        twice
            .unwrap_err()
            .to_string()
            .contains("it contains a job already")
    );
    let none = JobFolder::open(dir.path(), &RemoteSettings::default());
    assert!(none.unwrap_err().to_string().contains("no job.json"));
}

#[test]
fn a_job_takes_credentials_that_exist_and_refuses_those_of_another_job() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let remote = RemoteSettings::default();
    let made = JobFolder::create(&path("made"), &spec(), &remote).unwrap();
    std::fs::write(path("made").join(NAME_FILE), "job-1\n").unwrap();
    let credentials = JobCredentials::read(&path("made")).unwrap();
    assert_eq!(credentials.job(), "job-1");
    let again =
        JobFolder::create_with(&path("again"), &spec(), &remote, Some(&credentials)).unwrap();
    assert!(made.token().unwrap().matches(&again.token().unwrap()));
    let other = JobSpec {
        job: "job-2".to_owned(),
        ..spec()
    };
    let refused = JobFolder::create_with(&path("other"), &other, &remote, Some(&credentials));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("not the authority of job job-2")
    );
    let second = JobFolder::create(&path("second"), &spec(), &remote).unwrap();
    std::fs::copy(
        second.path().join(TOKEN_FILE),
        path("made").join(TOKEN_FILE),
    )
    .unwrap();
    let refused = JobCredentials::read(&path("made")).err().unwrap();
    assert!(
        refused.to_string().contains("another authority"),
        "{refused}"
    );
}

#[test]
fn coordinators_are_found_the_newest_first_and_one_by_address() {
    let dir = tempfile::tempdir().unwrap();
    let folder = JobFolder::create(dir.path(), &spec(), &RemoteSettings::default()).unwrap();
    assert_eq!(folder.coordinators().unwrap(), []);
    let [a, b] = ["127.0.0.1:1", "127.0.0.1:2"].map(|text| text.parse().unwrap());
    folder.announce(CoordinatorId(1), a).unwrap();
    folder.announce(CoordinatorId(2), a).unwrap();
    assert_eq!(folder.coordinators().unwrap(), [a]);
    folder.announce(CoordinatorId(3), b).unwrap();
    assert_eq!(folder.coordinators().unwrap().len(), 2);
    folder.withdraw(CoordinatorId(2));
    assert_eq!(folder.coordinators().unwrap(), [b]);
}
