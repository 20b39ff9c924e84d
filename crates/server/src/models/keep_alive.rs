//! [`KeepAlive`]: how long a model stays loaded without being used, as people and Ollama's clients write it.
//!
//! The command line, the TOML file of models and requests write it alike. Invariant: any text and any number
//! is a time, "for ever", or refused; none overflows.

use std::{fmt, str::FromStr, time::Duration};

use serde_json::Value;

/// How long a model stays loaded without being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// Until its room is needed.
    Forever,
    /// So long after its last request.
    For(Duration),
}

/// The error for a value that is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a time such as `5m`, `90s`, `1h30m` or a number of seconds, or a negative one for ever")]
pub struct KeepAliveError;

/// Units as Go's durations have them, which Ollama's clients send. Longer names come first where one begins another.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("h", 3600.0),
    ("m", 60.0),
    ("s", 1.0),
];

impl KeepAlive {
    /// The time, where it ends.
    pub fn time(self) -> Option<Duration> {
        match self {
            Self::Forever => None,
            Self::For(time) => Some(time),
        }
    }

    /// Reads the `keep_alive` of a request: seconds, or a text.
    ///
    /// # Errors
    /// Fails on a value that is neither.
    pub fn from_json(value: &Value) -> Result<Self, KeepAliveError> {
        match value {
            Value::Number(seconds) => Self::from_seconds(seconds.as_f64().ok_or(KeepAliveError)?),
            Value::String(text) => text.parse(),
            _ => Err(KeepAliveError),
        }
    }

    fn from_seconds(seconds: f64) -> Result<Self, KeepAliveError> {
        if seconds.is_nan() {
            return Err(KeepAliveError);
        }
        if seconds < 0.0 {
            return Ok(Self::Forever);
        }
        // Longer than 64 bits of seconds is longer than anything runs.
        Ok(Duration::try_from_secs_f64(seconds).map_or(Self::Forever, Self::For))
    }
}

impl FromStr for KeepAlive {
    type Err = KeepAliveError;

    fn from_str(text: &str) -> Result<Self, KeepAliveError> {
        let text = text.trim();
        let is_number = !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_digit() || b"+-.".contains(&byte));
        if is_number {
            return Self::from_seconds(text.parse().map_err(|_| KeepAliveError)?);
        }
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1.0, rest),
            None => (1.0, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest.is_empty() {
            return Err(KeepAliveError);
        }
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let n_digits = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .ok_or(KeepAliveError)?;
            let number: f64 = rest[..n_digits].parse().map_err(|_| KeepAliveError)?;
            let (unit, scale) = (UNITS.iter())
                .find(|(unit, _)| rest[n_digits..].starts_with(unit))
                .ok_or(KeepAliveError)?;
            seconds += number * scale;
            rest = &rest[n_digits + unit.len()..];
        }
        Self::from_seconds(sign * seconds)
    }
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forever => f.write_str("-1"),
            Self::For(time) => write!(f, "{}s", time.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_read_as_ollama_reads_them() {
        let check = |value: Value, expected: Option<KeepAlive>| {
            assert_eq!(KeepAlive::from_json(&value).ok(), expected, "{value}");
        };
        let seconds = |n: f64| Some(KeepAlive::For(Duration::from_secs_f64(n)));
        check(json!(0), seconds(0.0));
        check(json!(300), seconds(300.0));
        check(json!(0.5), seconds(0.5));
        check(json!(-1), Some(KeepAlive::Forever));
        check(json!("300"), seconds(300.0));
        check(json!("-1"), Some(KeepAlive::Forever));
        check(json!("5m"), seconds(300.0));
        check(json!("1h30m"), seconds(5400.0));
        check(json!("1.5h"), seconds(5400.0));
        check(json!("250ms"), seconds(0.25));
        check(json!("0s"), seconds(0.0));
        check(json!("-5m"), Some(KeepAlive::Forever));
        check(json!(1e300), Some(KeepAlive::Forever));
        check(json!("5"), seconds(5.0));
        for wrong in [
            json!(""),
            json!("soon"),
            json!("m"),
            json!("5 m"),
            json!("1.2.3s"),
            json!("--1"),
            json!(true),
            json!([]),
        ] {
            check(wrong, None);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[-+0-9.a-zµ ]{0,12}") {
            let _ = text.parse::<KeepAlive>();
        }

        #[test]
        fn what_is_written_is_read_back(millis in 0u64..1_000_000_000) {
            let time = KeepAlive::For(Duration::from_millis(millis));
            let read = time.to_string().parse::<KeepAlive>().expect("a time");
            let (KeepAlive::For(read), KeepAlive::For(time)) = (read, time) else { unreachable!() };
            prop_assert!(read.abs_diff(time) < Duration::from_micros(1));
        }
    }
}
