//! [`Reading`]: how a value is taken from a variable.

use std::net::IpAddr;

use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde_json::Value as Json;

/// A function that returns the text of a variable, or of a file whose path is the name.
pub(super) type Texts<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Names a text, and a field of it if it is a JSON object.
pub(super) type TextField = (&'static str, &'static str);

/// One way to a value of the table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reading {
    /// The text of a variable.
    Value(&'static str),
    /// The host of `host:port`.
    HostOf(&'static str),
    /// The port of `host:port`.
    PortOf(&'static str),
    /// The first address of Open MPI's `id;tcp://address,address:port`.
    HostOfUri(&'static str),
    /// The first node of Slurm's compressed list, such as `gpu[01-04,09],other`.
    FirstNode(&'static str),
    /// A number of processes, if all of them are on one node.
    SizeOnOneNode {
        /// The variable with the number of nodes.
        nodes: &'static str,
        /// The variable with the number of processes.
        size: &'static str,
    },
    /// The position of an item in a JSON list.
    IndexIn {
        /// The list.
        list: TextField,
        /// The item.
        item: TextField,
    },
    /// The length of a JSON list.
    LengthOf(&'static str, &'static str),
    /// The first item of a JSON list.
    FirstOf(&'static str, &'static str),
    /// The rank of this task among the workers of a `TF_CONFIG`.
    ClusterIndex(&'static str),
    /// The number of workers of a `TF_CONFIG`.
    ClusterSize(&'static str),
    /// The host of the first worker of a `TF_CONFIG`.
    ClusterHost(&'static str),
    /// The port of the first worker of a `TF_CONFIG`.
    ClusterPort(&'static str),
}

impl Reading {
    /// Returns the variable, or the variables, of the value.
    pub(super) fn names(&self) -> String {
        match self {
            Self::Value(name)
            | Self::HostOf(name)
            | Self::PortOf(name)
            | Self::HostOfUri(name)
            | Self::FirstNode(name)
            | Self::LengthOf(name, _)
            | Self::FirstOf(name, _)
            | Self::ClusterIndex(name)
            | Self::ClusterSize(name)
            | Self::ClusterHost(name)
            | Self::ClusterPort(name) => (*name).to_owned(),
            Self::SizeOnOneNode { nodes, size } => format!("{nodes}, {size}"),
            Self::IndexIn { list, item } if list.0 == item.0 => list.0.to_owned(),
            Self::IndexIn { list, item } => format!("{}, {}", list.0, item.0),
        }
    }

    /// Takes the value; `None` if the variable is not set or does not have it.
    ///
    /// # Errors
    /// The problem of the variable.
    pub(super) fn take(&self, texts: Texts<'_>) -> Result<Option<String>, String> {
        let text = |name: &str| texts(name).filter(|text| !text.is_empty());
        match *self {
            Self::Value(name) => Ok(text(name)),
            Self::HostOf(name) => split(name, text(name)).map(|found| found.map(|(host, _)| host)),
            Self::PortOf(name) => split(name, text(name)).map(|found| found.map(|(_, port)| port)),
            Self::HostOfUri(name) => Ok(text(name).and_then(|text| host_of_uri(&text))),
            Self::FirstNode(name) => Ok(text(name).and_then(|text| first_node(&text))),
            Self::SizeOnOneNode { nodes, size } => {
                Ok(text(size).filter(|_| text(nodes).as_deref() == Some("1")))
            }
            Self::IndexIn { list, item } => index_in(list, item, texts),
            Self::LengthOf(name, field) => {
                Ok(list((name, field), texts)?.map(|items| items.len().to_string()))
            }
            Self::FirstOf(name, field) => {
                Ok(list((name, field), texts)?.and_then(|items| items.into_iter().next()))
            }
            Self::ClusterIndex(name) => cluster(name, texts, |cluster| cluster.rank()),
            Self::ClusterSize(name) => cluster(name, texts, |cluster| {
                Ok(cluster.workers().len().to_string())
            }),
            Self::ClusterHost(name) => {
                cluster(name, texts, |cluster| cluster.first().map(|it| it.0))
            }
            Self::ClusterPort(name) => {
                cluster(name, texts, |cluster| cluster.first().map(|it| it.1))
            }
        }
    }
}

/// Splits `host:port`.
fn split(name: &str, text: Option<String>) -> Result<Option<(String, String)>, String> {
    let Some(text) = text else { return Ok(None) };
    let parts = host_and_port(&text);
    parts
        .map(Some)
        .ok_or_else(|| format!("{name}={text} is not an address like node1:4711"))
}

fn host_and_port(text: &str) -> Option<(String, String)> {
    let (host, port) = text.rsplit_once(':')?;
    let is_valid = !host.is_empty() && port.parse::<u16>().is_ok();
    is_valid.then(|| (host.to_owned(), port.to_owned()))
}

fn host_of_uri(text: &str) -> Option<String> {
    let (_, addresses) = text.split_once("tcp://")?;
    let first = addresses.split([',', ':', ';']).next()?;
    first.parse::<IpAddr>().ok().map(|ip| ip.to_string())
}

/// Returns the first name of a compressed list of nodes.
fn first_node(text: &str) -> Option<String> {
    let Some((prefix, rest)) = text
        .split_once('[')
        .filter(|(prefix, _)| !prefix.contains(','))
    else {
        return text.split(',').next().map(str::to_owned);
    };
    let (ranges, after) = rest.split_once(']')?;
    let number = ranges.split([',', '-']).next()?;
    let suffix = after.split(',').next().unwrap_or_default();
    first_node(&format!("{prefix}{number}{suffix}"))
}

fn field((name, field): TextField, texts: Texts<'_>) -> Result<Option<Json>, String> {
    let Some(text) = texts(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let invalid = |problem: String| format!("{name} is not valid JSON: {problem}");
    let json: Json = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    match field {
        "" => Ok(Some(json)),
        field => match json.get(field) {
            Some(value) => Ok(Some(value.clone())),
            None => Err(format!("{name} has no field `{field}`")),
        },
    }
}

fn list(name: TextField, texts: Texts<'_>) -> Result<Option<Vec<String>>, String> {
    let Some(json) = field(name, texts)? else {
        return Ok(None);
    };
    let items: Result<Vec<String>, _> = serde_json::from_value(json);
    let items = items.map_err(|_| format!("{} is not a JSON list of names", name.0))?;
    Ok(Some(items))
}

fn index_in(
    list_name: TextField,
    item: TextField,
    texts: Texts<'_>,
) -> Result<Option<String>, String> {
    let Some(items) = list(list_name, texts)? else {
        return Ok(None);
    };
    let found = match item.1 {
        // A plain text, not JSON.
        "" => texts(item.0),
        _ => field(item, texts)?.and_then(|json| json.as_str().map(str::to_owned)),
    };
    let Some(found) = found else {
        return Err(format!("{} is set but {} is not", list_name.0, item.0));
    };
    let index = items.iter().position(|known| *known == found);
    match index {
        Some(index) => Ok(Some(index.to_string())),
        None => Err(format!(
            "{} does not name `{found}` of {}",
            list_name.0, item.0
        )),
    }
}

/// A `TF_CONFIG`.
#[derive(Deserialize)]
struct ClusterConfig {
    #[serde(default)]
    cluster: ClusterMembers,
    task: Option<ClusterTask>,
}

/// The addresses of a `TF_CONFIG` that are of interest.
#[derive(Default, Deserialize)]
struct ClusterMembers {
    /// The name of the chief in older versions of TensorFlow.
    #[serde(default)]
    master: Vec<String>,
    #[serde(default)]
    chief: Vec<String>,
    #[serde(default)]
    worker: Vec<String>,
}

/// The entry of this process.
#[derive(Deserialize)]
struct ClusterTask {
    r#type: String,
    index: usize,
}

impl ClusterConfig {
    /// Returns the addresses of the workers by rank: the chief first.
    fn workers(&self) -> Vec<&String> {
        let members = &self.cluster;
        let chiefs = members.chief.iter().chain(&members.master);
        chiefs.chain(&members.worker).collect()
    }

    fn rank(&self) -> Result<String, String> {
        let members = &self.cluster;
        let Some(task) = &self.task else {
            return Err("has no `task`".to_owned());
        };
        let (before, list) = match task.r#type.as_str() {
            "chief" => (0, &members.chief),
            "master" => (members.chief.len(), &members.master),
            "worker" => (members.chief.len() + members.master.len(), &members.worker),
            other => {
                return Err(format!(
                    "has the role `{other}` for this process, which does not train: expected `chief` or `worker`"
                ));
            }
        };
        if task.index >= list.len() {
            let (index, kind, size) = (task.index, &task.r#type, list.len());
            return Err(format!(
                "has no address of {kind} {index}, only {size} of them"
            ));
        }
        Ok((before + task.index).to_string())
    }

    fn first(&self) -> Result<(String, String), String> {
        let workers = self.workers();
        let first = workers.first().ok_or("has no workers")?;
        host_and_port(first).ok_or_else(|| format!("has the address `{first}`: expected host:port"))
    }
}

/// Reads a `TF_CONFIG`, which Paperspace encodes in base64.
fn cluster(
    name: &str,
    texts: Texts<'_>,
    take: impl FnOnce(&ClusterConfig) -> Result<String, String>,
) -> Result<Option<String>, String> {
    let Some(text) = texts(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let decoded = match text.trim_start().starts_with('{') {
        true => text.into_bytes(),
        false => base64_text(&text).ok_or_else(|| format!("{name} is neither JSON nor base64"))?,
    };
    let config: ClusterConfig = serde_json::from_slice(&decoded)
        .map_err(|error| format!("{name} is not a valid description of a cluster: {error}"))?;
    if config.workers().is_empty() {
        // It describes one process.
        return Ok(None);
    }
    let value = take(&config).map_err(|problem| format!("{name} {problem}"))?;
    Ok(Some(value))
}

/// Decodes base64 with either alphabet, with or without padding.
fn base64_text(text: &str) -> Option<Vec<u8>> {
    const ANY_PADDING: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let decoders = [alphabet::STANDARD, alphabet::URL_SAFE]
        .map(|alphabet| GeneralPurpose::new(&alphabet, ANY_PADDING));
    decoders
        .iter()
        .find_map(|decoder| decoder.decode(text.trim()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_of_a_compressed_list_is_found() {
        for (list, first) in [
            ("n1", "n1"),
            ("gpu[01-04,09],other", "gpu01"),
            ("gpu[3,5]", "gpu3"),
            ("a,b[1-2]", "a"),
            ("rack[1-2]n[3-4]", "rack1n3"),
            ("cn[07].hpc,x", "cn07.hpc"),
        ] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
    }

    #[test]
    fn addresses_are_taken_from_texts_of_launchers() {
        let uri = "1418592256.0;tcp://192.0.2.2,10.0.0.1:52215;tcp6://[fd00::2]:39799";
        assert_eq!(host_of_uri(uri).as_deref(), Some("192.0.2.2"));
        assert_eq!(host_of_uri("1.0;usock"), None);
        let pair = |host: &str, port: &str| Some((host.to_owned(), port.to_owned()));
        assert_eq!(host_and_port("[::1]:80"), pair("[::1]", "80"));
        assert_eq!(host_and_port("node:x"), None);
        assert_eq!(
            base64_text("eyJhIjoxfQ==").as_deref(),
            Some(&b"{\"a\":1}"[..])
        );
        assert_eq!(base64_text("a b"), None);
    }
}
