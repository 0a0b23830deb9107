//! Notices that this host will be taken away: a file that appears, or an address of the cloud's metadata that answers.

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ronde_cluster::StopFlag;
use serde_json::Value;
use signal_hook::consts::SIGTERM;

use crate::command::console::message;

/// Interval at which a source is looked at; clouds announce the end of a host 30 s before it or earlier.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time limit for the answer of an address.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// The address of the metadata of Amazon's hosts, which requires a token.
const AMAZON: &str = "169.254.169.254/latest/";
/// The path at which Azure has the name of a host, as its events list it.
const AZURE_NAME: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
/// The events of Azure that end a host or the processes on it. `Freeze` only pauses it for some seconds.
const AZURE_ENDS: [&str; 4] = ["Preempt", "Terminate", "Reboot", "Redeploy"];

/// Where a notice appears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoticeSource {
    /// A file that does not exist before.
    File(PathBuf),
    /// An address: the host with its port, and the path.
    Web {
        /// The host, with a port.
        host: String,
        /// The path with a leading `/`.
        path: String,
    },
}

impl FromStr for NoticeSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("http://") else {
            return match text.contains("://") || text.is_empty() {
                true => Err("expected a path or an address that begins with http://".to_owned()),
                false => Ok(Self::File(PathBuf::from(text))),
            };
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty()
            || rest
                .chars()
                .any(|letter| letter.is_control() || letter == ' ')
        {
            return Err("expected an address such as http://169.254.169.254/path".to_owned());
        }
        let host = match host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
            _ => format!("{host}:80"),
        };
        Ok(Self::Web {
            host,
            path: format!("/{path}"),
        })
    }
}

impl fmt::Display for NoticeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Web { host, path } => write!(f, "http://{host}{path}"),
        }
    }
}

impl NoticeSource {
    /// Looks for the notice in a thread, and requests the same end as SIGTERM when it appears.
    pub(crate) fn watch(&self, stop: &StopFlag) {
        let (source, stop) = (self.clone(), stop.clone());
        std::thread::spawn(move || {
            loop {
                if let Some(notice) = source.look() {
                    message!("preemption notice: {notice}");
                    return stop.request(SIGTERM);
                }
                ronde_clock::pause(LOOK_EVERY);
            }
        });
    }

    /// Returns the notice, if it has appeared. A source that does not answer has none.
    fn look(&self) -> Option<String> {
        match self {
            Self::File(path) => path.exists().then(|| format!("{} exists", path.display())),
            Self::Web { host, path } => {
                let token = match format!("{host}{path}")
                    .replace(":80/", "/")
                    .starts_with(AMAZON)
                {
                    true => request(
                        host,
                        "PUT",
                        "/latest/api/token",
                        "X-aws-ec2-metadata-token-ttl-seconds: 60\r\n",
                    ),
                    false => None,
                };
                let token = token.map_or_else(String::new, |token| {
                    format!("X-aws-ec2-metadata-token: {}\r\n", token.trim())
                });
                // The headers that Google and Azure require.
                let headers = format!("{token}Metadata-Flavor: Google\r\nMetadata: true\r\n");
                let answer = request(host, "GET", path, &headers)?;
                let name = || request(host, "GET", AZURE_NAME, &headers);
                is_notice(&answer, &name).then(|| {
                    format!(
                        "http://{host}{path} answers {}",
                        answer.trim().escape_debug()
                    )
                })
            }
        }
    }
}

/// Returns whether an answer announces the end of the host. Without a notice, Amazon answers with status 404, Google with
/// `FALSE` or `NONE`, and Azure without an event of such a kind for this host, whose name `name` returns.
fn is_notice(answer: &str, name: &dyn Fn() -> Option<String>) -> bool {
    let parsed = serde_json::from_str(answer).unwrap_or(Value::Null);
    if let Some(events) = parsed["Events"].as_array() {
        let ends = |event: &&Value| {
            let kind = event["EventType"].as_str().unwrap_or_default();
            AZURE_ENDS.contains(&kind)
        };
        let mut ends = events.iter().filter(ends).peekable();
        if ends.peek().is_none() {
            return false;
        }
        // Without a name, the event may be about this host.
        let name = name().map(|name| name.trim().to_ascii_lowercase());
        return ends.any(|event| match (event["Resources"].as_array(), &name) {
            (Some(hosts), Some(name)) => hosts
                .iter()
                .filter_map(Value::as_str)
                .any(|host| host.to_ascii_lowercase() == *name),
            _ => true,
        });
    }
    !matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "" | "false" | "none" | "0"
    )
}

/// Sends a request and returns the body of an answer with status 200.
fn request(host: &str, method: &str, path: &str, headers: &str) -> Option<String> {
    let address = host.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX).ok()?;
    stream.set_read_timeout(Some(ANSWER_MAX)).ok()?;
    stream.set_write_timeout(Some(ANSWER_MAX)).ok()?;
    let text = format!(
        "{method} {path} HTTP/1.0\r\nHost: {host}\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = Vec::new();
    // Without a complete end, what has arrived counts.
    let _ = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?;
    (status == "200").then(|| body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_files_and_addresses() {
        let web = |host: &str, path: &str| NoticeSource::Web {
            host: host.to_owned(),
            path: path.to_owned(),
        };
        for (text, expected) in [
            ("/run/notice", NoticeSource::File("/run/notice".into())),
            ("http://h:81/a/b?c=1", web("h:81", "/a/b?c=1")),
            ("http://169.254.169.254", web("169.254.169.254:80", "/")),
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        for text in ["", "https://h/x", "http:///x", "http://h/a b"] {
            assert!(text.parse::<NoticeSource>().is_err(), "{text}");
        }
    }

    #[test]
    fn answers_without_an_event_that_ends_this_host_are_no_notice() {
        let events = |kind: &str, hosts: &str| {
            format!(
                "{{\"DocumentIncarnation\": 3, \"Events\": [{{\"EventId\": \"a\", \"EventType\": \"{kind}\", \
                 \"ResourceType\": \"VirtualMachine\", \"Resources\": [{hosts}], \"EventStatus\": \"Scheduled\"}}]}}"
            )
        };
        let named = || Some("gpu_1\n".to_owned());
        for answer in [
            "",
            "\n",
            "FALSE",
            "none",
            "{\"DocumentIncarnation\": 3, \"Events\": []}",
            &events("Freeze", "\"gpu_1\""),
            &events("Preempt", "\"gpu_2\", \"gpu_11\""),
        ] {
            assert!(!is_notice(answer, &named), "{answer}");
        }
        for answer in [
            "TRUE",
            "{\"action\": \"terminate\"}",
            "{\"Events\": [{\"EventType\": \"Preempt\"}]}",
            &events("Preempt", "\"gpu_2\", \"GPU_1\""),
            &events("Terminate", "\"gpu_1\""),
            &events("Redeploy", "\"gpu_1\""),
            &events("Reboot", "\"gpu_1\""),
        ] {
            assert!(is_notice(answer, &named), "{answer}");
        }
        let preempt = events("Preempt", "\"gpu_2\"");
        assert!(is_notice(&preempt, &|| None), "the name is not known");
    }
}
