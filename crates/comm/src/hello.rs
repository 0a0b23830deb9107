//! [`JoinHello`]: the first frame between two members, with which each refuses a peer of another job,
//! generation, protocol version or plan.

use std::cmp::Ordering;

use ronde_core::byte_reader::{ByteProblem, ByteReader, write_text};
use ronde_core::{CollectiveError, Generation, GroupRank, PlanIdentity};
use ronde_wire::HelloFormat;

use crate::config::GroupConfig;

/// Maximum size of a hello after its prefix, in bytes.
const HELLO_BYTES_MAX: usize = 64 << 10;
/// The first frame of a connection between members.
pub(crate) const HELLO: HelloFormat = HelloFormat {
    magic: *b"rondehi\n",
    version: 6,
    bytes_max: HELLO_BYTES_MAX,
};

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
        Ok(HELLO.encode(&body))
    }

    fn body(&self, plan: &PlanIdentity) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.generation.0.to_le_bytes());
        out.extend(self.rank.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        out.extend(self.connections.to_le_bytes());
        out.extend(self.connection.to_le_bytes());
        out.extend(self.plan_hash);
        write_text(&mut out, &self.job);
        write_text(&mut out, &self.name);
        out.extend((plan.parts().count() as u32).to_le_bytes());
        for (name, value) in plan.parts() {
            write_text(&mut out, name);
            write_text(&mut out, value);
        }
        out
    }

    /// Decodes a body.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, ByteProblem> {
        let mut rest = ByteReader::new(body);
        let (generation, rank, size) = (rest.u64()?, rest.u32()?, rest.u32()?);
        let (connections, connection) = (rest.u32()?, rest.u32()?);
        let plan_hash = rest.array()?;
        let (job, name) = (rest.text()?.to_owned(), rest.text()?.to_owned());
        let mut plan = PlanIdentity::default();
        for _ in 0..rest.u32()? {
            let (part, value) = (rest.text()?, rest.text()?);
            plan.set(part, value);
        }
        rest.end()?;
        Ok(Self {
            name,
            job,
            generation: Generation(generation),
            rank,
            size,
            connections,
            connection,
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
