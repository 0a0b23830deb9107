//! What strangers and files may say, each with samples to begin with and the memory that reading may take.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use ronde_cluster::decoders::Line;
use ronde_comm::decoders::WireFormat;
use ronde_core::Rank;
use ronde_data::decoders::Kind;
use ronde_identity::rustls::pki_types::CertificateDer;
use ronde_identity::rustls::pki_types::pem::PemObject;
use ronde_identity::{Authority, Identity, JoinToken, Member, Validity};

const MEMBER: Member = Member::Rank(Rank(3));

/// One reader of foreign bytes.
pub struct Target {
    /// As in `cargo fuzz run`.
    pub name: &'static str,
    /// What must be accepted.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Reads bytes; says why they are refused. Panics for a bug.
    pub read: fn(&[u8]) -> Result<(), String>,
    /// Bytes of memory that reading may take at once: so many times the input, and so many more.
    pub memory: (usize, usize),
    /// Whether a sample without its end is refused.
    pub needs_its_end: bool,
    /// Mutated inputs of the ordinary test.
    pub cases: u32,
}

/// All of them.
pub const ALL: [&Target; 18] = [
    &FRAME,
    &HELLO,
    &NOTICE,
    &FROM_WORKER,
    &FROM_SUPERVISOR,
    &QUESTION,
    &FROM_AGENT,
    &TO_AGENT,
    &JOIN_TOKEN,
    &IDENTITY,
    &AUTHORITY,
    &CERTIFICATE,
    &TFRECORD,
    &TAR,
    &NPY,
    &NPZ,
    &CSV,
    &INDEX,
];

/// The header of a frame: nothing is kept but what an error says.
pub const FRAME: Target = Target {
    name: "frame",
    samples: || WireFormat::Frame.samples(),
    read: |bytes| WireFormat::Frame.read(bytes),
    memory: (0, 1 << 10),
    needs_its_end: true,
    cases: 200_000,
};

/// The first frame: each part of a plan is two texts in a map, and what differs is told.
pub const HELLO: Target = Target {
    name: "hello",
    samples: || WireFormat::Hello.samples(),
    read: |bytes| WireFormat::Hello.read(bytes),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// The cause of a failure.
pub const NOTICE: Target = Target {
    name: "notice",
    samples: || WireFormat::Notice.samples(),
    read: |bytes| WireFormat::Notice.read(bytes),
    // A byte that is no text becomes three, and the words are held a few times.
    memory: (16, 4 << 10),
    needs_its_end: false,
    cases: 100_000,
};

/// A line of a worker.
pub const FROM_WORKER: Target = Target {
    name: "from_worker",
    samples: || Line::FromWorker.samples(),
    read: |bytes| Line::FromWorker.read(bytes),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A line of a supervisor.
pub const FROM_SUPERVISOR: Target = Target {
    name: "from_supervisor",
    samples: || Line::FromSupervisor.samples(),
    read: |bytes| Line::FromSupervisor.read(bytes),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// The line of somebody with a join token.
pub const QUESTION: Target = Target {
    name: "question",
    samples: || Line::Question.samples(),
    read: |bytes| Line::Question.read(bytes),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A line of an agent.
pub const FROM_AGENT: Target = Target {
    name: "from_agent",
    samples: || Line::FromAgent.samples(),
    read: |bytes| Line::FromAgent.read(bytes),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A line of a coordinator to an agent.
pub const TO_AGENT: Target = Target {
    name: "to_agent",
    samples: || Line::ToAgent.samples(),
    read: |bytes| Line::ToAgent.read(bytes),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// The word by which a host joins.
pub const JOIN_TOKEN: Target = Target {
    name: "join_token",
    samples: || {
        let token = AUTHORITY_OF_JOB.join_token().expect("there is randomness");
        vec![token.to_text().expose().as_bytes().to_vec()]
    },
    read: |bytes| {
        let token: JoinToken = text(bytes)?.parse().map_err(told)?;
        let again: JoinToken = token.to_text().expose().parse().map_err(told)?;
        assert!(token.matches(&again), "a token is read as it was written");
        Ok(())
    },
    memory: (4, 4 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A member's certificates and key as text.
pub const IDENTITY: Target = Target {
    name: "identity",
    samples: || vec![IDENTITY_TEXT.clone().into_bytes()],
    read: |bytes| {
        let identity = Identity::from_pem("job", MEMBER, text(bytes)?).map_err(told)?;
        let again = identity.to_pem();
        Identity::from_pem("job", MEMBER, again.expose()).expect("what was written is read");
        Ok(())
    },
    // Settings of TLS are made of it.
    memory: (16, 256 << 10),
    needs_its_end: true,
    cases: 4_000,
};

/// An authority's certificate and key as text.
pub const AUTHORITY: Target = Target {
    name: "authority",
    samples: || vec![AUTHORITY_OF_JOB.to_pem().expose().as_bytes().to_vec()],
    read: |bytes| {
        let authority = Authority::from_pem("job", text(bytes)?).map_err(told)?;
        let again = authority.to_pem();
        Authority::from_pem("job", again.expose()).expect("what was written is read");
        Ok(())
    },
    memory: (16, 256 << 10),
    needs_its_end: true,
    cases: 4_000,
};

/// A certificate as a peer shows it.
pub const CERTIFICATE: Target = Target {
    name: "certificate",
    samples: || {
        let all = CertificateDer::pem_slice_iter(IDENTITY_TEXT.as_bytes());
        let first = all.flatten().next().expect("an identity has a certificate");
        vec![first.to_vec()]
    },
    read: |bytes| {
        let certificate = CertificateDer::from(bytes);
        MINE.check_peer(&certificate, &MEMBER).map_err(told)
    },
    memory: (16, 64 << 10),
    needs_its_end: true,
    cases: 20_000,
};

/// A file of TFRecord samples; it is read through a window, and once more as a whole.
pub const TFRECORD: Target = Target {
    name: "tfrecord",
    samples: || Kind::TfRecord.samples(),
    read: |bytes| Kind::TfRecord.read(bytes),
    memory: (64, 4 << 20),
    needs_its_end: false,
    cases: 10_000,
};

/// An archive of samples.
pub const TAR: Target = Target {
    name: "tar",
    samples: || Kind::Tar.samples(),
    read: |bytes| Kind::Tar.read(bytes),
    memory: (64, 4 << 20),
    needs_its_end: false,
    cases: 10_000,
};

/// A file of one array.
pub const NPY: Target = Target {
    name: "npy",
    samples: || Kind::Npy.samples(),
    read: |bytes| Kind::Npy.read(bytes),
    memory: (64, 1 << 20),
    needs_its_end: true,
    cases: 20_000,
};

/// A file of several arrays, compressed ones, too: these say how long they are, and are unpacked no further.
pub const NPZ: Target = Target {
    name: "npz",
    samples: || Kind::Npz.samples(),
    read: |bytes| Kind::Npz.read(bytes),
    memory: (2048, 1 << 20),
    needs_its_end: true,
    cases: 10_000,
};

/// A file of comma-separated values.
pub const CSV: Target = Target {
    name: "csv",
    samples: || Kind::Csv.samples(),
    read: |bytes| Kind::Csv.read(bytes),
    memory: (512, 4 << 20),
    needs_its_end: false,
    cases: 10_000,
};

/// What is kept of the scan of a file.
pub const INDEX: Target = Target {
    name: "index",
    samples: || Kind::Index.samples(),
    read: |bytes| Kind::Index.read(bytes),
    memory: (64, 64 << 10),
    needs_its_end: true,
    cases: 50_000,
};

fn validity() -> Validity {
    Validity::from_now(SystemTime::now(), Duration::from_secs(3600))
}

static AUTHORITY_OF_JOB: LazyLock<Authority> =
    LazyLock::new(|| Authority::new("job", validity()).expect("an authority can be made"));

static MINE: LazyLock<Identity> = LazyLock::new(|| {
    let identity = AUTHORITY_OF_JOB.issue(&MEMBER, validity());
    identity.expect("an identity can be issued")
});

static IDENTITY_TEXT: LazyLock<String> = LazyLock::new(|| MINE.to_pem().expose().to_owned());

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

fn told(error: ronde_identity::IdentityError) -> String {
    error.to_string()
}
