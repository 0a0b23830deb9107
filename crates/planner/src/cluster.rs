//! [`ClusterShape`]: the machines that a forecast is for, and the units in which users describe them.

use serde::Serialize;

use crate::error::AdviseError;

/// The machines that a forecast is for: equal hosts, each with one link to the others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ClusterShape {
    /// The number of hosts.
    pub hosts: u32,
    /// The cores of a host.
    pub cores: u32,
    /// The bytes of memory of a host that workers can use.
    pub memory_bytes: u64,
    /// The link between a host and the others.
    pub link: HostLink,
    /// The price of a host for an hour, in any currency; `None`: unknown.
    pub price_per_hour: Option<f64>,
}

/// The link between a host and the others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HostLink {
    /// The bytes per second in each direction.
    pub bytes_per_s: f64,
    /// The seconds until the first byte of a message arrives.
    pub latency_s: f64,
}

impl Default for HostLink {
    /// Returns a link of 10 Gbit/s with a latency of 50 us.
    fn default() -> Self {
        Self {
            bytes_per_s: 10e9 / 8.0,
            latency_s: 50e-6,
        }
    }
}

impl ClusterShape {
    /// Returns the number of workers that a host has cores for, if each computes with a number of threads.
    ///
    /// # Errors
    /// [`AdviseError::NoCores`] without room for a single one.
    pub fn workers_per_host(&self, threads: u32) -> Result<u32, AdviseError> {
        match self.cores / threads.max(1) {
            0 => Err(AdviseError::NoCores {
                threads,
                cores: self.cores,
            }),
            workers => Ok(workers),
        }
    }

    /// Returns one host with the cores and the memory of all hosts together.
    #[must_use]
    pub fn as_one_host(&self) -> Self {
        Self {
            hosts: 1,
            cores: self.cores.saturating_mul(self.hosts),
            memory_bytes: self.memory_bytes.saturating_mul(self.hosts.into()),
            ..*self
        }
    }
}

/// Splits a number from its unit.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    (number.is_finite() && number > 0.0).then(|| (number, text[end..].trim()))
}

/// Reads a number of bytes such as `64GiB`, `512 MiB` or `16GB`.
///
/// # Errors
/// [`AdviseError::Setting`] for anything else, and for zero.
pub fn parse_bytes(text: &str) -> Result<u64, AdviseError> {
    let unit = |unit: &str| {
        Some(match unit {
            "B" => 1.0,
            "KiB" => f64::from(1 << 10),
            "MiB" => f64::from(1 << 20),
            "GiB" => f64::from(1 << 30),
            "TiB" => (1_u64 << 40) as f64,
            "KB" | "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "TB" => 1e12,
            _ => return None,
        })
    };
    let bytes = number_and_unit(text).and_then(|(number, name)| Some(number * unit(name)?));
    let bytes = bytes.filter(|bytes| (1.0..1e18).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or(AdviseError::Setting {
        setting: "--memory",
        value: text.to_owned(),
        expected: "a size with a unit, such as 64GiB or 512MiB",
    })
}

/// Reads a link: its rate and its latency, such as `10Gbit/s,50us`. The latency may be left out; it is then 50 us.
///
/// # Errors
/// [`AdviseError::Setting`] for anything else.
pub fn parse_link(text: &str) -> Result<HostLink, AdviseError> {
    let rate = |text: &str| {
        let (number, unit) = number_and_unit(text)?;
        let bytes = match unit {
            "Gbit/s" => 1e9 / 8.0,
            "Mbit/s" => 1e6 / 8.0,
            "GB/s" => 1e9,
            "MB/s" => 1e6,
            "GiB/s" => f64::from(1 << 30),
            "MiB/s" => f64::from(1 << 20),
            _ => return None,
        };
        Some(number * bytes)
    };
    let latency = |text: &str| {
        let (number, unit) = number_and_unit(text)?;
        let seconds = match unit {
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        Some(number * seconds)
    };
    let (first, second) = match text.split_once(',') {
        Some((first, second)) => (first, Some(second)),
        None => (text, None),
    };
    let found = rate(first).and_then(|bytes_per_s| {
        let latency_s = second.map_or(Some(HostLink::default().latency_s), latency)?;
        Some(HostLink {
            bytes_per_s,
            latency_s,
        })
    });
    found.ok_or(AdviseError::Setting {
        setting: "--link",
        value: text.to_owned(),
        expected: "a rate and a latency with units, such as 10Gbit/s,50us",
    })
}

/// Reads the price of a host for an hour, such as `1.20/h` or `1.20`.
///
/// # Errors
/// [`AdviseError::Setting`] for anything else.
pub fn parse_price(text: &str) -> Result<f64, AdviseError> {
    let price = number_and_unit(text).filter(|(_, unit)| ["", "/h"].contains(unit));
    price.map(|(price, _)| price).ok_or(AdviseError::Setting {
        setting: "--price",
        value: text.to_owned(),
        expected: "the price of a host for an hour, such as 1.20/h",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_links_and_prices_have_units() {
        assert_eq!(parse_bytes("64GiB"), Ok(64 << 30));
        assert_eq!(parse_bytes("1.5 MiB"), Ok(3 << 19));
        assert_eq!(parse_bytes("16GB"), Ok(16_000_000_000));
        let link = parse_link("10Gbit/s,50us").unwrap();
        assert!((link.bytes_per_s - 1.25e9).abs() < 1.0 && (link.latency_s - 50e-6).abs() < 1e-12);
        let slow = parse_link("100 MB/s, 2ms").unwrap();
        assert_eq!((slow.bytes_per_s, slow.latency_s), (1e8, 2e-3));
        assert_eq!(parse_link("25Gbit/s").unwrap().latency_s, 50e-6);
        assert_eq!(parse_price("1.20/h"), Ok(1.2));
        assert_eq!(parse_price("3"), Ok(3.0));
    }

    #[test]
    fn wrong_units_are_refused_with_an_example() {
        for text in [
            "64", "64Gb", "0GiB", "-1GiB", "GiB", "", "1e30GiB", "64GiB/s",
        ] {
            let error = parse_bytes(text).unwrap_err().to_string();
            assert!(
                error.contains("--memory") && error.contains("64GiB"),
                "{error}"
            );
        }
        for text in [
            "10",
            "10Gbit",
            "10Gbit/s,50",
            "50us",
            "10Gbit/s,50us,3",
            "0Gbit/s",
            "10Gbit/s,",
        ] {
            let error = parse_link(text).unwrap_err().to_string();
            assert!(error.contains("10Gbit/s,50us"), "{error}");
        }
        for text in ["1.2/d", "free", "-3/h", "0/h"] {
            assert!(parse_price(text).is_err(), "{text}");
        }
    }

    #[test]
    fn workers_need_cores() {
        let cluster = ClusterShape {
            hosts: 2,
            cores: 7,
            memory_bytes: 1 << 30,
            link: HostLink::default(),
            price_per_hour: None,
        };
        assert_eq!(cluster.workers_per_host(2), Ok(3));
        let error = cluster.workers_per_host(8).unwrap_err().to_string();
        assert!(
            error.contains("8 threads") && error.contains("7 cores"),
            "{error}"
        );
        assert_eq!(
            (cluster.as_one_host().hosts, cluster.as_one_host().cores),
            (1, 14)
        );
    }
}
