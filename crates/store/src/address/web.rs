//! Parsing and encoding of web server addresses, and the refusal of secrets in them.

use super::{Address, prefix_of};

/// The reason for which an address with a user, a password or a query is refused.
pub(super) const NO_SECRETS: &str = "an address must not contain a user, a password or a query, because addresses are printed and saved; \
                                     set credentials in the environment";

/// Parses `host:port/path`.
pub(super) fn parse(scheme: &str, rest: &str) -> Result<Address, String> {
    if rest.contains(['?', '#']) {
        return Err(NO_SECRETS.to_owned());
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.contains('@') || (!is_server(host) && path.contains('@')) {
        return Err(NO_SECRETS.to_owned());
    }
    if !is_server(host) {
        return Err(format!("`{host}` is not a valid server name"));
    }
    let path = decoded(path)?;
    Ok(Address::Web {
        server: format!("{scheme}://{}", host.to_ascii_lowercase()),
        prefix: prefix_of(&path).map_err(|error| error.to_string())?,
    })
}

/// Returns whether `text` is `host`, `host:port`, `1.2.3.4` or `[::1]:port`.
fn is_server(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, port)) if inside.parse::<std::net::Ipv6Addr>().is_ok() => ("ip", port),
        Some(_) => return false,
        None => text
            .find(':')
            .map_or((text, ""), |colon| text.split_at(colon)),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    !host.is_empty()
        && host.chars().all(plain)
        && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(byte.ok_or(
            "`%` must be followed by two hexadecimal digits; write `%25` for a literal `%`",
        )?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "the decoded path is not valid UTF-8".to_owned())
}

/// Percent-encodes the characters of a path that would end it or have another meaning in an
/// address.
pub(super) fn encoded(path: &str) -> String {
    path.chars().fold(String::new(), |mut text, c| {
        if " %?#\"<>".contains(c) {
            text.push_str(&format!("%{:02X}", c as u32));
        } else {
            text.push(c);
        }
        text
    })
}

/// Returns an address for a message, without the parts that may be secret.
pub(super) fn without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let shown = rest.find(['?', '#']).map_or(rest, |end| &rest[..end]);
    let (hidden, shown) = match shown.rsplit_once('@') {
        Some((_, host)) => ("..@", host),
        None => ("", shown),
    };
    format!("{scheme}://{hidden}{shown}")
}
