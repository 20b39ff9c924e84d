//! [`CivilTime`]: the date and time that `strftime_now` formats.
//!
//! The caller says what time it is, so that rendering is a pure function. Invariant: every field is in its range, so
//! formatting never fails.

use std::{fmt, str::FromStr};

use super::error::Fault;

/// A date and a time of day, without a time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CivilTime {
    year: i32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

/// A text that is not a date.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a date; write it as 2024-07-26 or 2024-07-26T13:45:00")]
pub struct ParseCivilTimeError(String);

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

impl CivilTime {
    /// Returns the UTC time that is `seconds` after 1970-01-01T00:00:00.
    ///
    /// Source: "days to civil", Howard Hinnant, chrono-compatible low-level date algorithms.
    pub fn from_unix_seconds(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400).clamp(-100_000_000, 100_000_000);
        let second_of_day = seconds.rem_euclid(86_400) as u32;
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = (if shifted_month < 10 {
            shifted_month + 3
        } else {
            shifted_month - 9
        }) as u32;
        Self {
            year: (year_of_era + era * 400 + i64::from(month <= 2)) as i32,
            month,
            day: (day_of_year - (153 * shifted_month + 2) / 5 + 1) as u32,
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        }
    }

    fn is_leap_year(self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    fn days_of_month(self) -> u32 {
        match self.month {
            2 => 28 + u32::from(self.is_leap_year()),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// Returns the day of the year, from 1.
    fn ordinal(self) -> u32 {
        (1..self.month)
            .map(|month| Self { month, ..self }.days_of_month())
            .sum::<u32>()
            + self.day
    }

    /// Returns the day of the week, 0 for Sunday.
    fn weekday(self) -> u32 {
        let year = i64::from(self.year) - 1;
        let days = year * 365 + year.div_euclid(4) - year.div_euclid(100)
            + year.div_euclid(400)
            + i64::from(self.ordinal());
        days.rem_euclid(7) as u32
    }

    /// Formats the date as `date_string` of Llama's templates, such as `26 Jul 2024`.
    pub fn day_month_year(self) -> String {
        let month = &MONTHS[self.month as usize - 1][..3];
        format!("{:02} {month} {}", self.day, self.year)
    }

    /// Formats the date as `datetime` of Firefunction's templates, such as `Jul 26 2024`.
    pub fn month_day_year(self) -> String {
        let month = &MONTHS[self.month as usize - 1][..3];
        format!("{month} {:02} {}", self.day, self.year)
    }

    /// Formats as C's `strftime` does in its default locale.
    pub(super) fn strftime(self, format: &str) -> Result<String, Fault> {
        let mut out = String::with_capacity(format.len());
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next();
            let is_unpadded = directive == Some('-');
            if is_unpadded {
                directive = chars.next();
            }
            let number = |value: u32, width: usize| {
                if is_unpadded {
                    value.to_string()
                } else {
                    format!("{value:0width$}")
                }
            };
            let hour12 = (self.hour + 11) % 12 + 1;
            let weekday = WEEKDAYS[self.weekday() as usize];
            let month = MONTHS[self.month as usize - 1];
            let text = match directive {
                Some('Y') => self.year.to_string(),
                Some('y') => number(self.year.rem_euclid(100) as u32, 2),
                Some('m') => number(self.month, 2),
                Some('d') => number(self.day, 2),
                Some('e') => format!("{:>2}", self.day),
                Some('H') => number(self.hour, 2),
                Some('I') => number(hour12, 2),
                Some('M') => number(self.minute, 2),
                Some('S') => number(self.second, 2),
                Some('j') => number(self.ordinal(), 3),
                Some('f') => "000000".into(),
                Some('w') => self.weekday().to_string(),
                Some('u') => ((self.weekday() + 6) % 7 + 1).to_string(),
                Some('B') => month.into(),
                Some('b' | 'h') => month[..3].into(),
                Some('A') => weekday.into(),
                Some('a') => weekday[..3].into(),
                Some('p') => (if self.hour < 12 { "AM" } else { "PM" }).into(),
                Some('F') => self.strftime("%Y-%m-%d")?,
                Some('T' | 'X') => self.strftime("%H:%M:%S")?,
                Some('R') => self.strftime("%H:%M")?,
                Some('D' | 'x') => self.strftime("%m/%d/%y")?,
                Some('c') => self.strftime("%a %b %e %H:%M:%S %Y")?,
                // A time without a zone has neither name nor offset.
                Some('Z' | 'z') => String::new(),
                Some('n') => "\n".into(),
                Some('t') => "\t".into(),
                Some('%') => "%".into(),
                other => {
                    return Err(Fault::Type(format!(
                        "strftime has no directive `%{}`",
                        other.unwrap_or(' ')
                    )));
                }
            };
            out.push_str(&text);
        }
        Ok(out)
    }
}

impl fmt::Display for CivilTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            year,
            month,
            day,
            hour,
            minute,
            second,
        } = self;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )
    }
}

impl FromStr for CivilTime {
    type Err = ParseCivilTimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseCivilTimeError(text.to_owned());
        let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
        let numbers = |part: &str, separator: char| -> Option<Vec<u32>> {
            part.split(separator).map(|number| number.parse().ok()).collect()
        };
        let (Some(date), Some(time)) = (numbers(date, '-'), numbers(time, ':')) else {
            return Err(error());
        };
        let (&[year, month, day], &[hour, minute, ref seconds @ ..]) = (&date[..], &time[..]) else {
            return Err(error());
        };
        let second = match *seconds {
            [] => 0,
            [second] => second,
            _ => return Err(error()),
        };
        let this = Self {
            year: year as i32,
            month,
            day,
            hour,
            minute,
            second,
        };
        let is_valid = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=this.days_of_month()).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if is_valid { Ok(this) } else { Err(error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_seconds_and_text_agree() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_721_998_800, "2024-07-26T13:00:00"),
            (4_102_444_799, "2099-12-31T23:59:59"),
        ] {
            assert_eq!(
                CivilTime::from_unix_seconds(seconds),
                text.parse().unwrap(),
                "{text}"
            );
        }
    }

    #[test]
    fn strftime_formats_names_and_numbers() {
        let time: CivilTime = "2024-07-06 15:04:05".parse().unwrap();
        for (format, expected) in [
            ("%d %b %Y", "06 Jul 2024"),
            ("%A, %B %-d", "Saturday, July 6"),
            ("%j %y %I:%M %p", "188 24 03:04 PM"),
            ("%F %T %%", "2024-07-06 15:04:05 %"),
        ] {
            assert_eq!(time.strftime(format).unwrap(), expected);
        }
        assert_eq!(time.day_month_year(), "06 Jul 2024");
        assert_eq!(time.month_day_year(), "Jul 06 2024");
        assert!(time.strftime("%Q").is_err());
        assert!(time.strftime("%").is_err());
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in ["", "2024-13-01", "2023-02-29", "2024-07-26T25:00", "26.07.2024"] {
            assert!(text.parse::<CivilTime>().is_err(), "{text}");
        }
    }
}
