//! Addresses of web servers: their parts, their encoding, and what must not be in them.

use super::{Address, prefix_of};

/// Why an address with a user, a password or a query is refused.
pub(super) const NO_SECRETS: &str = "a user, a password or a query cannot be part of it, as addresses are shown and saved; \
                                     credentials come from the environment";

/// Takes `host:port/path` apart.
pub(super) fn parse(scheme: &str, rest: &str) -> Result<Address, String> {
    if rest.contains(['?', '#']) {
        return Err(NO_SECRETS.to_owned());
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.contains('@') || (!is_server(host) && path.contains('@')) {
        return Err(NO_SECRETS.to_owned());
    }
    if !is_server(host) {
        return Err(format!("{host:?} is no server"));
    }
    let path = decoded(path)?;
    Ok(Address::Web {
        server: format!("{scheme}://{}", host.to_ascii_lowercase()),
        prefix: prefix_of(&path).map_err(|error| error.to_string())?,
    })
}

/// `host`, `host:port`, `1.2.3.4`, `[::1]:port`.
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
        bytes.push(
            byte.ok_or("% and two hexadecimal digits stand for a byte; %25 is the sign itself")?,
        );
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "it is no UTF-8 when decoded".to_owned())
}

/// The path with what would end it or mean something else in an address encoded.
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

/// An address for a message, without what may be a secret in it.
pub(super) fn without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let shown = rest.find(['?', '#']).map_or(rest, |end| &rest[..end]);
    let (hidden, shown) = match shown.rsplit_once('@') {
        Some((_, place)) => ("..@", place),
        None => ("", shown),
    };
    format!("{scheme}://{hidden}{shown}")
}
