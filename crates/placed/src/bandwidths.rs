//! [`Bandwidths`]: the memory bandwidth of each side, and the cost of a border.
//!
//! They belong to a machine, not to a network. Invariant: the rates of usable bandwidths are not zero, so
//! division by them gives finite numbers.

use std::{fmt, str::FromStr};

/// The memory bandwidth of each side, and the cost of a border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidths {
    /// Bytes per second that the host's threads read from host memory.
    pub host_bytes_per_s: u64,
    /// Bytes per second that the device reads and writes in its own memory.
    pub device_bytes_per_s: u64,
    /// Bytes per second copied between them.
    pub link_bytes_per_s: u64,
    /// Latency of a crossing in nanoseconds, in addition to its bytes.
    pub crossing_ns: u64,
}

impl Bandwidths {
    /// Returns whether all rates are nonzero and plausible: below a petabyte per second, and a crossing below
    /// a second.
    pub fn is_usable(&self) -> bool {
        [
            self.host_bytes_per_s,
            self.device_bytes_per_s,
            self.link_bytes_per_s,
        ]
        .iter()
        .all(|&rate| rate > 0 && rate < 1_000_000_000_000_000)
            && self.crossing_ns < 1_000_000_000
    }
}

/// The text does not describe bandwidths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BandwidthsError {
    /// An entry is not a name with a number.
    #[error("`{found}` is not a bandwidth; expected, for example, `gpu=900,cpu=40,link=25,crossing=15`")]
    NoNumber {
        /// The entry.
        found: String,
    },
    /// The name is unknown.
    #[error(
        "`{found}` is not a bandwidth; expected `gpu`, `cpu` or `link` in GB/s, or `crossing` in microseconds"
    )]
    UnknownName {
        /// The name.
        found: String,
    },
    /// The number is implausible.
    #[error("`{found}` is not above 0 and below a million")]
    OutOfRange {
        /// The number.
        found: String,
    },
    /// A name occurs twice.
    #[error("`{name}` is given twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// A name is missing.
    #[error("`{name}` is missing; expected such as `gpu=900,cpu=40,link=25,crossing=15`")]
    Missing {
        /// The name.
        name: &'static str,
    },
}

/// The names in the order of the fields, with the value of one unit.
const NAMES: [(&str, f64); 4] = [("cpu", 1e9), ("gpu", 1e9), ("link", 1e9), ("crossing", 1e3)];

impl FromStr for Bandwidths {
    type Err = BandwidthsError;

    /// Parses a list such as `gpu=900,cpu=40,link=25,crossing=15`: GB/s, and microseconds.
    fn from_str(text: &str) -> Result<Self, BandwidthsError> {
        let mut values = [None; NAMES.len()];
        for item in text.split(',').map(str::trim) {
            let found = || item.to_owned();
            let named = item.split_once('=');
            let (name, number) = named.ok_or_else(|| BandwidthsError::NoNumber { found: found() })?;
            let place = NAMES.iter().position(|(known, _)| *known == name);
            let place = place.ok_or_else(|| BandwidthsError::UnknownName {
                found: name.to_owned(),
            })?;
            let number: f64 = (number.parse()).map_err(|_| BandwidthsError::NoNumber { found: found() })?;
            let value = (number * NAMES[place].1).round();
            if !(value >= 1.0 && number < 1e6) {
                return Err(BandwidthsError::OutOfRange { found: found() });
            }
            if values[place].replace(value as u64).is_some() {
                return Err(BandwidthsError::Twice {
                    name: name.to_owned(),
                });
            }
        }
        let value = |place: usize| values[place].ok_or(BandwidthsError::Missing { name: NAMES[place].0 });
        Ok(Self {
            host_bytes_per_s: value(0)?,
            device_bytes_per_s: value(1)?,
            link_bytes_per_s: value(2)?,
            crossing_ns: value(3)?,
        })
    }
}

impl fmt::Display for Bandwidths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |rate: u64| rate as f64 / 1e9;
        write!(
            f,
            "GPU {:.1} GB/s, CPU {:.1} GB/s, between them {:.1} GB/s and {:.1} us a crossing",
            gb(self.device_bytes_per_s),
            gb(self.host_bytes_per_s),
            gb(self.link_bytes_per_s),
            self.crossing_ns as f64 / 1e3
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_read_or_refused() {
        let check = |text: &str, expected: Result<Bandwidths, &str>| {
            let found = text.parse::<Bandwidths>().map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{text}");
        };
        check(
            "gpu=900, cpu=40.5,link=25,crossing=1.5",
            Ok(Bandwidths {
                host_bytes_per_s: 40_500_000_000,
                device_bytes_per_s: 900_000_000_000,
                link_bytes_per_s: 25_000_000_000,
                crossing_ns: 1500,
            }),
        );
        check(
            "gpu=900,cpu=40,crossing=1",
            Err("`link` is missing; expected such as `gpu=900,cpu=40,link=25,crossing=15`"),
        );
        check(
            "disk=1",
            Err(
                "`disk` is not a bandwidth; expected `gpu`, `cpu` or `link` in GB/s, or `crossing` in microseconds",
            ),
        );
        check("gpu=1,gpu=2", Err("`gpu` is given twice"));
        for wrong in [
            "gpu=0",
            "gpu=-1",
            "gpu=nan",
            "gpu=inf",
            "gpu=1e9",
            "crossing=0.0001",
        ] {
            check(
                wrong,
                Err(&format!("`{wrong}` is not above 0 and below a million")),
            );
        }
        for wrong in ["", "gpu", "gpu=", "gpu=fast", "gpu=1,"] {
            assert!(wrong.parse::<Bandwidths>().is_err(), "{wrong}");
        }
    }
}
