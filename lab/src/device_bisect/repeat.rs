//! [`Repeater`]: a recorded launch against its repetition on a simulated device.
//!
//! Only bytes that either device changed are compared, since one row of a large buffer would be lost in it. Invariant: floats and bytes may
//! differ by rounding, which sums in other orders and approximate functions explain; whole numbers may not.

use half::f16;
use serde_json::{Value, json};
use tokenmill_cuda_exec::{Device, RecordedBuffer, RecordedLaunch};
use tokenmill_sim_driver::{SimOptions, Simulator};

use crate::measure::deviation::{ROUNDING, deviation};

/// [`ROUNDING`] for bytes, which are quantized values, or parts of values of two bytes. A value between two steps may go to either.
const BYTES_LIMIT: f64 = 6e-2;
/// Memory of the simulated device, which takes host memory only as it is used.
const MEMORY_BYTES: u64 = 64 << 30;

/// A simulated device that launches are repeated on.
pub(super) struct Repeater {
    capability: (u32, u32),
    device: Option<Device>,
}

/// Distance of a buffer from its repetition.
#[derive(Clone, Debug, PartialEq)]
struct Distance {
    buffer: usize,
    element: String,
    n_bytes: usize,
    n_changed: usize,
    deviation: f64,
    limit: f64,
}

/// Result of a repetition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Repeated {
    /// The device's error if the launch failed there.
    failure: Option<String>,
    /// Why the simulated device could not repeat it, so that nothing is known.
    refusal: Option<String>,
    distances: Vec<Distance>,
}

impl Repeated {
    pub(super) fn is_right(&self) -> bool {
        self.failure.is_none() && self.worst().is_none()
    }

    /// Returns the buffer that is furthest off, if one exceeds its limit.
    fn worst(&self) -> Option<&Distance> {
        let share = |distance: &Distance| distance.deviation / distance.limit;
        let worst = (self.distances.iter()).max_by(|a, b| share(a).total_cmp(&share(b)))?;
        // NaN counts as a large share.
        let is_within = share(worst) <= 1.0;
        (!is_within).then_some(worst)
    }

    pub(super) fn reason(&self) -> String {
        if let Some(failure) = &self.failure {
            return failure.clone();
        }
        match self.worst() {
            Some(worst) => format!(
                "buffer {} ({}) differs by {:.4} of its size from what the simulated device computes of the same bytes (at most {})",
                worst.buffer, worst.element, worst.deviation, worst.limit
            ),
            None => self.refusal.clone().unwrap_or_default(),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let distances = self.distances.iter().map(|distance| {
            json!({
                "buffer": distance.buffer,
                "element": distance.element,
                "bytes": distance.n_bytes,
                "changed_bytes": distance.n_changed,
                "deviation": distance.deviation.is_finite().then_some(distance.deviation),
                "limit": distance.limit,
            })
        });
        json!({
            "failure": self.failure,
            "not_repeated": self.refusal,
            "distances": distances.collect::<Vec<_>>(),
        })
    }
}

impl Repeater {
    /// Makes a repeater for a device of this compute capability.
    pub(super) fn new(capability: (u32, u32)) -> Self {
        Self {
            capability,
            device: None,
        }
    }

    /// Repeats a launch and compares the results. A launch that failed is not repeated, and one that cannot be repeated counts as right.
    pub(super) fn compare(&mut self, launch: &RecordedLaunch) -> Repeated {
        if let Some(failure) = &launch.failure {
            return Repeated {
                failure: Some(failure.clone()),
                ..Repeated::default()
            };
        }
        let (major, minor) = self.capability;
        let device = self.device.get_or_insert_with(|| {
            let options = SimOptions {
                total_bytes: MEMORY_BYTES,
                capability: (major as i32, minor as i32),
                ..SimOptions::default()
            };
            Simulator::new(&options).device()
        });
        let expected = match device.repeat(launch) {
            Ok(expected) => expected,
            Err(error) => {
                // The device may be lost with it.
                self.device = None;
                return Repeated {
                    refusal: Some(error.to_string()),
                    ..Repeated::default()
                };
            }
        };
        let distances = (launch.buffers.iter().zip(&expected).enumerate())
            .filter_map(|(index, (buffer, expected))| distance(index, buffer, expected));
        Repeated {
            distances: distances.collect(),
            ..Repeated::default()
        }
    }
}

/// Reads an element from its bytes.
type Reader = fn(&[u8]) -> f64;

/// Returns the distance of a buffer from the expected contents; `None` if neither device changed it.
fn distance(index: usize, buffer: &RecordedBuffer, expected: &[u8]) -> Option<Distance> {
    let (before, found) = (&buffer.before, buffer.after.as_ref().unwrap_or(&buffer.before));
    if found == before && expected == before {
        return None;
    }
    let (size, limit, value): (usize, f64, Reader) = match buffer.element.as_str() {
        "f32" => (4, ROUNDING, |bytes| f32::from_le_bytes(array(bytes)).into()),
        "half::binary16::f16" | "u16" => (2, ROUNDING, |bytes| f16::from_le_bytes(array(bytes)).to_f64()),
        "u32" | "i32" => (4, 0.0, |bytes| u32::from_le_bytes(array(bytes)).into()),
        _ => (1, BYTES_LIMIT, |bytes| i8::from_le_bytes(array(bytes)).into()),
    };
    let chunks = (before.chunks_exact(size))
        .zip(found.chunks_exact(size))
        .zip(expected.chunks_exact(size));
    let changed: Vec<(f64, f64)> = chunks
        .filter(|((before, found), expected)| found != before || expected != before)
        .map(|((_, found), expected)| match (value(found), value(expected)) {
            // Equal bits count as equal: the difference of two infinities or NaNs is NaN.
            (_, number) if found == expected && !number.is_finite() => (0.0, 0.0),
            pair => pair,
        })
        .collect();
    let deviation = deviation(changed.iter().copied());
    Some(Distance {
        buffer: index,
        element: buffer.element.clone(),
        n_bytes: before.len(),
        n_changed: size * changed.len(),
        // A limit of 0 has no shares.
        deviation: if limit == 0.0 && deviation > 0.0 {
            f64::INFINITY
        } else {
            deviation
        },
        limit: if limit == 0.0 { 1.0 } else { limit },
    })
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("chunks are of the element's size")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deviation(element: &str, before: &[u8], after: &[u8], expected: &[u8]) -> Option<(f64, bool)> {
        let buffer = RecordedBuffer::new(element, before.to_vec(), Some(after.to_vec()));
        let found = distance(0, &buffer, expected)?;
        let repeated = Repeated {
            distances: vec![found.clone()],
            ..Repeated::default()
        };
        Some((found.deviation, repeated.is_right()))
    }

    #[test]
    fn rounding_is_right_in_floats_and_bytes_and_wrong_in_whole_numbers() {
        let floats = |values: &[f32]| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<_>>()
        };
        let before = floats(&[0.0; 4]);
        let expected = floats(&[1.0, 2.0, 3.0, 0.0]);
        let near = floats(&[1.001, 2.0, 3.0, 0.0]);
        let (share, is_right) = deviation("f32", &before, &near, &expected).unwrap();
        assert!(share > 0.0 && is_right);
        let (_, is_right) = deviation("f32", &before, &floats(&[1.5, 2.0, 3.0, 0.0]), &expected).unwrap();
        assert!(!is_right);
        let (_, is_right) =
            deviation("f32", &before, &floats(&[f32::NAN, 2.0, 3.0, 0.0]), &expected).unwrap();
        assert!(!is_right);
        let is_right = |element, before: &[u8], after: &[u8], expected: &[u8]| {
            deviation(element, before, after, expected).unwrap().1
        };
        assert!(!is_right("u32", &[0; 4], &[1, 0, 0, 0], &[2, 0, 0, 0]));
        assert_eq!(
            deviation("u32", &[0; 4], &[2, 0, 0, 0], &[2, 0, 0, 0]),
            Some((0.0, true))
        );
        // A step of one in many large bytes.
        let many = [100u8; 64];
        let mut found = many;
        found[7] = 101;
        assert!(is_right("i8", &[0; 64], &found, &many));
        found[7] = 36;
        assert!(!is_right("i8", &[0; 64], &found, &many));
    }

    #[test]
    fn what_neither_device_changed_does_not_count() {
        assert_eq!(deviation("f32", &[7; 8], &[7; 8], &[7; 8]), None);
        let mut large = vec![100u8; 1 << 16];
        let before = large.clone();
        large[3] = 50;
        // One byte of many, which is the only change.
        assert!(!deviation("i8", &before, &large, &before).unwrap().1);
    }
}
