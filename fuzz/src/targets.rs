//! Parsers of untrusted bytes, each with sample inputs and its memory limit.

use std::error::Error;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use ronde_cluster::decoders::ControlLine;
use ronde_comm::decoders::WireFormat;
use ronde_core::Rank;
use ronde_data::decoders::FuzzedFormat;
use ronde_identity::rustls::pki_types::CertificateDer;
use ronde_identity::rustls::pki_types::pem::PemObject;
use ronde_identity::{Authority, Identity, JoinToken, Member, Validity};
use ronde_rpc::decoders::RpcWireFormat;
use ronde_saved_model::decoders::ModelFile;
use ronde_serve::decoders::FuzzedRequest;

const MEMBER: Member = Member::Rank(Rank(3));

/// A parser that returns the reason if bytes are refused.
type BytesReader = fn(&[u8]) -> Result<(), Box<dyn Error>>;

/// A parser of untrusted bytes.
pub struct Target {
    /// The name for `cargo fuzz run`.
    pub name: &'static str,
    /// Inputs that must be accepted.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Parses bytes and returns the reason if they are refused. Panics indicate a bug.
    pub read: BytesReader,
    /// The limit of memory in use: bytes per input byte, and additional bytes.
    pub memory: (usize, usize),
    /// Whether a truncated sample is refused.
    pub needs_its_end: bool,
    /// The number of mutated inputs in the ordinary test.
    pub cases: u32,
}

/// All targets.
pub const ALL: [&Target; 25] = [
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
    &SAFETENSORS,
    &INITIAL_WEIGHTS,
    &MANIFEST,
    &PREDICT_REQUEST,
    &GENERATE_REQUEST,
    &RPC_FRAMES,
    &RPC_HELLO,
];

/// The header of a frame: only the text of an error is allocated.
pub const FRAME: Target = Target {
    name: "frame",
    samples: || WireFormat::Frame.samples(),
    read: |bytes| WireFormat::Frame.read(bytes),
    memory: (0, 1 << 10),
    needs_its_end: true,
    cases: 200_000,
};

/// The first frame: each part of a plan is a pair of texts in a map, and differences are listed.
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
    // An invalid UTF-8 byte becomes three bytes, and the text is copied a few times.
    memory: (16, 4 << 10),
    needs_its_end: false,
    cases: 100_000,
};

/// Frames of remote calls. Memory for values grows with the bytes that have arrived.
pub const RPC_FRAMES: Target = Target {
    name: "rpc_frames",
    samples: || RpcWireFormat::Frames.samples(),
    read: |bytes| RpcWireFormat::Frames.read(bytes),
    // The buffer for short frames, and the first memory for the values of a message.
    memory: (16, 2 << 20),
    needs_its_end: false,
    cases: 50_000,
};

/// The first messages of connections for remote calls.
pub const RPC_HELLO: Target = Target {
    name: "rpc_hello",
    samples: || RpcWireFormat::Hello.samples(),
    read: |bytes| RpcWireFormat::Hello.read(bytes),
    memory: (16, 4 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A line from a worker.
pub const FROM_WORKER: Target = Target {
    name: "from_worker",
    samples: || ControlLine::FromWorker.samples(),
    read: |bytes| Ok(ControlLine::FromWorker.read(bytes)?),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A line from a supervisor.
pub const FROM_SUPERVISOR: Target = Target {
    name: "from_supervisor",
    samples: || ControlLine::FromSupervisor.samples(),
    read: |bytes| Ok(ControlLine::FromSupervisor.read(bytes)?),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A line from a host with a join token.
pub const QUESTION: Target = Target {
    name: "question",
    samples: || ControlLine::TokenRequest.samples(),
    read: |bytes| Ok(ControlLine::TokenRequest.read(bytes)?),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A line from an agent.
pub const FROM_AGENT: Target = Target {
    name: "from_agent",
    samples: || ControlLine::FromAgent.samples(),
    read: |bytes| Ok(ControlLine::FromAgent.read(bytes)?),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A line from a coordinator to an agent.
pub const TO_AGENT: Target = Target {
    name: "to_agent",
    samples: || ControlLine::ToAgent.samples(),
    read: |bytes| Ok(ControlLine::ToAgent.read(bytes)?),
    memory: (64, 16 << 10),
    needs_its_end: true,
    cases: 100_000,
};

/// A join token.
pub const JOIN_TOKEN: Target = Target {
    name: "join_token",
    samples: || {
        let token = AUTHORITY_OF_JOB
            .join_token()
            .expect("random numbers are available");
        vec![token.to_text().expose().as_bytes().to_vec()]
    },
    read: |bytes| {
        let token: JoinToken = std::str::from_utf8(bytes)?.parse()?;
        let again: JoinToken = token.to_text().expose().parse()?;
        assert!(token.matches(&again), "tokens round-trip");
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
        let identity = Identity::from_pem("job", MEMBER, std::str::from_utf8(bytes)?)?;
        let again = identity.to_pem();
        Identity::from_pem("job", MEMBER, again.expose()).expect("identities round-trip");
        Ok(())
    },
    // TLS settings are created from it.
    memory: (16, 256 << 10),
    needs_its_end: true,
    cases: 4_000,
};

/// An authority's certificate and key as text.
pub const AUTHORITY: Target = Target {
    name: "authority",
    samples: || vec![AUTHORITY_OF_JOB.to_pem().expose().as_bytes().to_vec()],
    read: |bytes| {
        let authority = Authority::from_pem("job", std::str::from_utf8(bytes)?)?;
        let again = authority.to_pem();
        Authority::from_pem("job", again.expose()).expect("authorities round-trip");
        Ok(())
    },
    memory: (16, 256 << 10),
    needs_its_end: true,
    cases: 4_000,
};

/// A certificate as presented by a peer.
pub const CERTIFICATE: Target = Target {
    name: "certificate",
    samples: || {
        let all = CertificateDer::pem_slice_iter(IDENTITY_TEXT.as_bytes());
        let first = all.flatten().next().expect("an identity has a certificate");
        vec![first.to_vec()]
    },
    read: |bytes| {
        let certificate = CertificateDer::from(bytes);
        Ok(MINE.check_peer(&certificate, &MEMBER)?)
    },
    memory: (16, 64 << 10),
    needs_its_end: true,
    cases: 20_000,
};

/// A TFRecord file; it is read through a window, and once more as a whole.
pub const TFRECORD: Target = Target {
    name: "tfrecord",
    samples: || FuzzedFormat::TfRecord.samples(),
    read: |bytes| FuzzedFormat::TfRecord.read(bytes),
    memory: (64, 4 << 20),
    needs_its_end: false,
    cases: 10_000,
};

/// A tar archive of samples.
pub const TAR: Target = Target {
    name: "tar",
    samples: || FuzzedFormat::Tar.samples(),
    read: |bytes| FuzzedFormat::Tar.read(bytes),
    memory: (64, 4 << 20),
    needs_its_end: false,
    cases: 10_000,
};

/// A `.npy` file.
pub const NPY: Target = Target {
    name: "npy",
    samples: || FuzzedFormat::Npy.samples(),
    read: |bytes| FuzzedFormat::Npy.read(bytes),
    memory: (64, 1 << 20),
    needs_its_end: true,
    cases: 20_000,
};

/// A `.npz` file. Compressed arrays are unpacked no further than their stated length.
pub const NPZ: Target = Target {
    name: "npz",
    samples: || FuzzedFormat::Npz.samples(),
    read: |bytes| FuzzedFormat::Npz.read(bytes),
    memory: (2048, 1 << 20),
    needs_its_end: true,
    cases: 10_000,
};

/// A CSV file.
pub const CSV: Target = Target {
    name: "csv",
    samples: || FuzzedFormat::Csv.samples(),
    read: |bytes| FuzzedFormat::Csv.read(bytes),
    memory: (512, 4 << 20),
    needs_its_end: false,
    cases: 10_000,
};

/// The stored index of a file.
pub const INDEX: Target = Target {
    name: "index",
    samples: || FuzzedFormat::Index.samples(),
    read: |bytes| FuzzedFormat::Index.read(bytes),
    memory: (64, 64 << 10),
    needs_its_end: true,
    cases: 50_000,
};

fn validity() -> Validity {
    Validity::from_now(SystemTime::now(), Duration::from_secs(3600))
}

static AUTHORITY_OF_JOB: LazyLock<Authority> =
    LazyLock::new(|| Authority::new("job", validity()).expect("authorities can be created"));

static MINE: LazyLock<Identity> = LazyLock::new(|| {
    let identity = AUTHORITY_OF_JOB.issue(&MEMBER, validity());
    identity.expect("identities can be issued")
});

static IDENTITY_TEXT: LazyLock<String> = LazyLock::new(|| MINE.to_pem().expose().to_owned());

/// A safetensors file with weights of another program. Values of 16 bits are read as 32 bits.
pub const SAFETENSORS: Target = Target {
    name: "safetensors",
    samples: || {
        vec![
            safetensors("F32", 4),
            safetensors("BF16", 2),
            safetensors("I64", 8),
        ]
    },
    read: |bytes| {
        let length = bytes.len() as u64;
        ronde_saved_model::WeightFile::read_from(bytes, length, "weights".as_ref())?;
        Ok(())
    },
    memory: (64, 3 << 20),
    needs_its_end: true,
    cases: 20_000,
};

/// Weights of another program from which a model is trained.
pub const INITIAL_WEIGHTS: Target = Target {
    name: "initial_weights",
    samples: || model_files(ModelFile::InitialWeights),
    read: |bytes| Ok(ModelFile::InitialWeights.read(bytes)?),
    memory: (64, 4 << 20),
    needs_its_end: true,
    cases: 5_000,
};

/// The manifest of a model, its layers and its card.
pub const MANIFEST: Target = Target {
    name: "manifest",
    samples: || model_files(ModelFile::Manifest),
    read: |bytes| Ok(ModelFile::Manifest.read(bytes)?),
    memory: (64, 4 << 20),
    needs_its_end: true,
    cases: 20_000,
};

fn model_files(kind: ModelFile) -> Vec<Vec<u8>> {
    kind.samples().expect("the model of the samples is valid")
}

/// The body of a request for predictions. Its images are decoded.
pub const PREDICT_REQUEST: Target = Target {
    name: "predict_request",
    samples: || FuzzedRequest::Predict.samples(),
    read: |bytes| FuzzedRequest::Predict.read(bytes),
    // An image has at most 2^20 pixels of 8 bytes, which are converted.
    memory: (64, 32 << 20),
    needs_its_end: true,
    cases: 20_000,
};

/// The body of a request for a text.
pub const GENERATE_REQUEST: Target = Target {
    name: "generate_request",
    samples: || FuzzedRequest::Generate.samples(),
    read: |bytes| FuzzedRequest::Generate.read(bytes),
    memory: (64, 64 << 10),
    needs_its_end: true,
    cases: 50_000,
};

/// Returns a safetensors file with two tensors of a type whose elements have `bytes` bytes.
fn safetensors(dtype: &str, bytes: usize) -> Vec<u8> {
    let (first, all) = (6 * bytes, 10 * bytes);
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt"}},"a.weight":{{"dtype":"{dtype}","shape":[2,3],"data_offsets":[0,{first}]}},"b":{{"dtype":"{dtype}","shape":[4],"data_offsets":[{first},{all}]}}}}"#
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..all).map(|byte| byte as u8));
    file
}
