//! [`Limit`], [`Seed`], [`count`] and [`duration`]: numbers and times on the command line, with errors that state the
//! accepted values.
//!
//! The standard library says of a wrong number only that a digit is invalid. Invariant: -1 has llama.cpp's
//! meaning where these types say so, and no other negative number has a meaning.

use std::{fmt, str::FromStr, time::Duration};

pub(crate) use tokenmill::load::{count, size};
use tokenmill_server::KeepAlive;

/// Reads a time that is more than nothing: a number of seconds, or numbers with units.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(KeepAlive::For(time)) if !time.is_zero() => Ok(time),
        _ => Err("expected a time of more than 0 seconds, such as 30, 90s, 5m or 1h30m".to_owned()),
    }
}

/// Rounds a number to `n_digits` digits after the point, for output. Zero has no sign.
pub(crate) fn rounded(value: f64, n_digits: i32) -> f64 {
    let scale = 10_f64.powi(n_digits);
    // Adding zero makes the negative zero positive.
    (value * scale).round() / scale + 0.0
}

/// An upper limit for a number of things; -1 stands for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No bound of its own.
    Unbounded,
    /// At most this number.
    AtMost(usize),
}

impl Limit {
    /// Returns the bound, if there is one.
    pub(crate) fn bound(self) -> Option<usize> {
        match self {
            Self::Unbounded => None,
            Self::AtMost(n) => Some(n),
        }
    }
}

impl Limit {
    /// The bound as a number of tokens; a number beyond 32 bits is not a bound.
    pub(crate) fn max_tokens(self) -> Option<u32> {
        self.bound().and_then(|n| u32::try_from(n).ok())
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("-1", _) => Ok(Self::Unbounded),
            (_, Ok(n)) => Ok(Self::AtMost(n)),
            _ => Err("expected a whole number, 0 or more, or -1 for no limit".to_owned()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unbounded => f.write_str("-1"),
            Self::AtMost(n) => n.fmt(f),
        }
    }
}

/// A count with its noun: `1 chunk`, `2 chunks`.
pub(crate) fn counted(n: usize, noun: &str) -> String {
    match n {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    }
}

/// A size in bytes, written as a number, or with a unit: `16GiB`, `500MB`, `8G`. One letter means the binary unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected a size such as 16GiB, 500MB or a number of bytes".to_owned();
        let text = text.trim();
        let n_digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(n_digits);
        let (power, base) = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => (0, 1024),
            "k" | "kib" => (1, 1024),
            "m" | "mib" => (2, 1024),
            "g" | "gib" => (3, 1024),
            "t" | "tib" => (4, 1024),
            "kb" => (1, 1000),
            "mb" => (2, 1000),
            "gb" => (3, 1000),
            "tb" => (4, 1000),
            _ => return Err(wrong()),
        };
        let scale = f64::from(base).powi(power);
        let n_bytes = number.parse::<f64>().map_err(|_| wrong())? * scale;
        if !(1.0..=1e18).contains(&n_bytes) {
            return Err(wrong());
        }
        Ok(Self(n_bytes as u64))
    }
}

/// The seed of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seed {
    /// A new one every time, written as -1.
    Random,
    /// This one.
    Fixed(u64),
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("-1", _) => Ok(Self::Random),
            (_, Ok(seed)) => Ok(Self::Fixed(seed)),
            _ => Err("expected a whole number, 0 or more, or -1 for a new seed every time".to_owned()),
        }
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("-1"),
            Self::Fixed(seed) => seed.fmt(f),
        }
    }
}

/// A size of a file with a unit.
pub(crate) fn size_of(n_bytes: u64) -> String {
    size(usize::try_from(n_bytes).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use tokenmill::load::positive;

    use super::*;

    #[test]
    fn a_size_has_a_unit_or_none() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(
                text.parse::<ByteSize>().ok().map(|size| size.0),
                expected,
                "{text}"
            );
        };
        check("1000", Some(1000));
        check("16GiB", Some(16 << 30));
        check("1.5g", Some(3 << 29));
        check("500 MB", Some(500_000_000));
        check("2T", Some(2 << 40));
        for wrong in ["", "0", "GiB", "-1", "1e3", "5 apples", "1.2.3M", "99999999999T"] {
            check(wrong, None);
        }
    }

    #[test]
    fn a_time_limit_is_more_than_nothing() {
        for (text, seconds) in [
            ("1.5", 1.5),
            ("30", 30.0),
            ("30s", 30.0),
            ("5m", 300.0),
            ("1h30m", 5400.0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for wrong in ["0", "0s", "-1", "-5m", "soon", "inf", "NaN", "5 m", ""] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_minus_one_is_no_limit() {
        assert_eq!("-1".parse(), Ok(Limit::Unbounded));
        assert_eq!("0".parse(), Ok(Limit::AtMost(0)));
        for wrong in ["-5", "-0.5", "x", "", "1e9"] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
            assert!(wrong.parse::<Seed>().is_err(), "{wrong}");
            assert!(count(wrong).is_err(), "{wrong}");
            assert!(positive(wrong).is_err(), "{wrong}");
        }
        assert_eq!("-1".parse(), Ok(Seed::Random));
        assert_eq!(u64::MAX.to_string().parse(), Ok(Seed::Fixed(u64::MAX)));
        assert_eq!(
            [Limit::Unbounded.to_string(), Seed::Fixed(7).to_string()],
            ["-1", "7"]
        );
    }

    #[test]
    fn what_rounds_to_zero_has_no_sign() {
        let text = |value| format!("{:+.3} {:.3}", rounded(value, 3), rounded(value, 3));
        assert_eq!(text(-0.000_4), "+0.000 0.000");
        assert_eq!(text(-0.000_6), "-0.001 -0.001");
        assert_eq!(text(1.234_6), "+1.235 1.235");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(5 << 30), "5.00 GiB");
    }
}
