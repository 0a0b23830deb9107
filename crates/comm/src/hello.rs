//! [`JoinHello`]: the first frame between two members, by which each refuses a peer of another job,
//! generation, protocol version or plan.

use std::cmp::Ordering;

use ronde_core::{CollectiveError, Generation, GroupRank, PlanIdentity};

use crate::GroupConfig;
use crate::frame::number;

/// Version of the protocol between members.
pub(crate) const PROTOCOL_VERSION: u32 = 6;
/// Maximum size of a hello after its prefix, in bytes.
pub(crate) const HELLO_BYTES_MAX: usize = 64 << 10;
/// Size of magic, version and length, in bytes.
pub(crate) const PREFIX_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"rondehi\n";

/// A member's identity and settings, as sent to each peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinHello {
    pub(crate) name: String,
    pub(crate) job: String,
    pub(crate) generation: Generation,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Number of connections between two members.
    pub(crate) connections: u32,
    /// Number of this connection; set by the member that dials.
    pub(crate) connection: u32,
    pub(crate) plan_hash: [u8; 32],
    /// The parts of the plan, to report which differ; empty when they are too long to send.
    pub(crate) plan: PlanIdentity,
}

impl JoinHello {
    pub(crate) fn new(config: &GroupConfig, size: usize, connections: usize) -> Self {
        Self {
            name: config.name.clone(),
            job: config.job.clone(),
            generation: config.generation,
            rank: config.rank.0,
            size: size as u32,
            connections: connections as u32,
            connection: 0,
            plan_hash: config.plan.hash(),
            plan: config.plan.clone(),
        }
    }

    /// Returns the hello without the parts of the plan, for a peer whose plan is known to be the same.
    pub(crate) fn without_parts(self) -> Self {
        Self {
            plan: PlanIdentity::default(),
            ..self
        }
    }

    /// Encodes prefix and body. Of a plan that is too long only the hash is sent.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] when the names alone are too long.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, CollectiveError> {
        let mut body = self.body(&self.plan);
        if body.len() > HELLO_BYTES_MAX {
            body = self.body(&PlanIdentity::default());
        }
        if body.len() > HELLO_BYTES_MAX {
            return Err(CollectiveError::Invalid {
                operation: "joining a group".to_owned(),
                problem: format!("the names of job and group exceed {HELLO_BYTES_MAX} bytes"),
            });
        }
        let mut out = MAGIC.to_vec();
        out.extend(PROTOCOL_VERSION.to_le_bytes());
        out.extend((body.len() as u32).to_le_bytes());
        out.extend(body);
        Ok(out)
    }

    fn body(&self, plan: &PlanIdentity) -> Vec<u8> {
        let mut out = Vec::new();
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        };
        out.extend(self.generation.0.to_le_bytes());
        out.extend(self.rank.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        out.extend(self.connections.to_le_bytes());
        out.extend(self.connection.to_le_bytes());
        out.extend(self.plan_hash);
        text(&mut out, &self.job);
        text(&mut out, &self.name);
        out.extend((plan.parts().count() as u32).to_le_bytes());
        for (name, value) in plan.parts() {
            text(&mut out, name);
            text(&mut out, value);
        }
        out
    }

    /// Returns whether bytes of a stream are the beginning of a hello; no other frame begins so.
    pub(crate) fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Decodes the prefix: version and length of the body, or why it is not a valid hello.
    pub(crate) fn decode_prefix(prefix: &[u8; PREFIX_BYTES]) -> Result<(u32, usize), String> {
        if prefix[..8] != MAGIC {
            return Err("it does not use the protocol of a group member".to_owned());
        }
        let (version, len) = (
            number(&prefix[8..12]) as u32,
            number(&prefix[12..]) as usize,
        );
        if len > HELLO_BYTES_MAX {
            return Err(format!("hello of {len} bytes, limit {HELLO_BYTES_MAX}"));
        }
        Ok((version, len))
    }

    /// Decodes a body of [`PROTOCOL_VERSION`].
    pub(crate) fn decode(body: &[u8]) -> Result<Self, String> {
        let mut rest = HelloReader(body);
        let (generation, rank, size) = (rest.number(8)?, rest.number(4)?, rest.number(4)?);
        let (connections, connection) = (rest.number(4)?, rest.number(4)?);
        let mut plan_hash = [0; 32];
        plan_hash.copy_from_slice(rest.take(32)?);
        let (job, name) = (rest.text()?, rest.text()?);
        let mut plan = PlanIdentity::default();
        for _ in 0..rest.number(4)? {
            let (part, value) = (rest.text()?, rest.text()?);
            plan.set(part, value);
        }
        if !rest.0.is_empty() {
            return Err(format!("{} extra bytes in a hello", rest.0.len()));
        }
        Ok(Self {
            name,
            job,
            generation: Generation(generation),
            rank: rank as u32,
            size: size as u32,
            connections: connections as u32,
            connection: connection as u32,
            plan_hash,
            plan,
        })
    }

    /// Returns the settings in which two members differ, if any.
    pub(crate) fn difference(&self, theirs: &Self) -> Option<String> {
        let mut differing = Vec::new();
        let mut compare = |what: &str, mine: &dyn ToString, theirs: &dyn ToString| {
            let (mine, theirs) = (mine.to_string(), theirs.to_string());
            if mine != theirs {
                differing.push(format!("{what} is {mine} here and {theirs} there"));
            }
        };
        compare("job", &self.job, &theirs.job);
        compare("group", &self.name, &theirs.name);
        compare("generation", &self.generation, &theirs.generation);
        compare("group size", &self.size, &theirs.size);
        compare(
            "the number of connections to each other",
            &self.connections,
            &theirs.connections,
        );
        if self.plan_hash != theirs.plan_hash {
            let parts = self.plan.difference(&theirs.plan);
            differing.push(parts.unwrap_or_else(|| "the hash of the plan".to_owned()));
        }
        (!differing.is_empty()).then(|| differing.join("; "))
    }

    /// Compares the generation of a member of the same group with that of this one.
    pub(crate) fn age_of(&self, theirs: &Self) -> Ordering {
        let same = self.job == theirs.job && self.name == theirs.name;
        if same {
            theirs.generation.cmp(&self.generation)
        } else {
            Ordering::Equal
        }
    }

    /// Returns an error if the peer's settings differ.
    pub(crate) fn check(&self, theirs: &Self) -> Result<(), CollectiveError> {
        match self.difference(theirs) {
            None => Ok(()),
            Some(difference) => Err(CollectiveError::OtherPlan {
                peer: GroupRank(theirs.rank),
                difference,
            }),
        }
    }
}

/// The part of a body that was not read yet.
struct HelloReader<'a>(&'a [u8]);

impl<'a> HelloReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let split = self.0.split_at_checked(count);
        let (taken, rest) = split.ok_or("truncated hello")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: usize) -> Result<u64, String> {
        self.take(bytes).map(number)
    }

    fn text(&mut self) -> Result<String, String> {
        let count = self.number(4)? as usize;
        let bytes = self.take(count)?.to_vec();
        String::from_utf8(bytes).map_err(|_| "invalid UTF-8 in a hello".to_owned())
    }
}
