//! [`Metadata`]: the key-value pairs of a file, and typed access to them.
//!
//! Everything above reads metadata here, and nothing above parses. Invariant: keys are unique and keep their
//! order; a getter never guesses, it returns the requested value or an error that names the key.

use std::{borrow::Cow, collections::HashMap};

use crate::{Array, GgufError, StringArray, Value};

/// Longest key the format allows.
const MAX_KEY_BYTES: usize = 65_535;

/// The metadata of a file: unique keys in file order, each with a [`Value`].
///
/// For every type there is a getter for a required key (`u32`) and one for an optional key (`opt_u32`); both
/// refuse a value of the wrong type. Integers may have any width in the file as long as their value fits,
/// because writers differ; every other type must match.
///
/// ```
/// use tokenmill_gguf::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("llama.block_count", 16_u32)?;
/// assert_eq!(metadata.u32("llama.block_count")?, 16);
/// assert_eq!(metadata.opt_f32("llama.rope.freq_base")?, None);
/// assert_eq!(
///     metadata.str("llama.block_count").unwrap_err().to_string(),
///     "metadata key `llama.block_count` has type u32, expected string",
/// );
/// # Ok::<(), tokenmill_gguf::GgufError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

/// Defines a getter and its optional twin.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $opt_name:ident -> $ty:ty, |$key:ident, $value:ident| $convert:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`GgufError::MissingKey`] if the key is absent, [`GgufError::WrongType`] or
            /// [`GgufError::OutOfRange`] if it holds something else.
            pub fn $name(&self, key: &str) -> Result<$ty, GgufError> {
                self.$opt_name(key)?.ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })
            }

            #[doc = concat!("Like [`Self::", stringify!($name), "`], with `None` for an absent key.")]
            ///
            /// # Errors
            /// [`GgufError::WrongType`] or [`GgufError::OutOfRange`] if the key holds something else.
            pub fn $opt_name(&self, key: &str) -> Result<Option<$ty>, GgufError> {
                let ($key, Some($value)) = (key, self.get(key)) else {
                    return Ok(None);
                };
                $convert.map(Some)
            }
        )*
    };
}

impl Metadata {
    getters! {
        /// Returns the unsigned 32-bit integer of a key.
        u32, opt_u32 -> u32, |key, value| integer(key, value, "u32");
        /// Returns the signed 32-bit integer of a key.
        i32, opt_i32 -> i32, |key, value| integer(key, value, "i32");
        /// Returns the unsigned 64-bit integer of a key.
        u64, opt_u64 -> u64, |key, value| integer(key, value, "u64");
        /// Returns the count or size of a key.
        usize, opt_usize -> usize, |key, value| integer(key, value, "a count");
        /// Returns the 32-bit float of a key; a 64-bit one is rounded.
        f32, opt_f32 -> f32, |key, value| match *value {
            Value::F32(number) => Ok(number),
            Value::F64(number) => Ok(number as f32),
            _ => Err(wrong_type(key, "f32", value)),
        };
        /// Returns the boolean of a key.
        bool, opt_bool -> bool, |key, value| match *value {
            Value::Bool(claim) => Ok(claim),
            _ => Err(wrong_type(key, "bool", value)),
        };
        /// Returns the text of a key.
        str, opt_str -> &str, |key, value| match value {
            Value::String(text) => Ok(text.as_str()),
            _ => Err(wrong_type(key, "string", value)),
        };
        /// Returns the array of a key, whatever its elements.
        array, opt_array -> &Array, |key, value| match value {
            Value::Array(array) => Ok(array),
            _ => Err(wrong_type(key, "array", value)),
        };
        /// Returns the texts of a key.
        string_array, opt_string_array -> &StringArray, |key, value| match value {
            Value::Array(Array::String(strings)) => Ok(strings),
            _ => Err(wrong_type(key, "array of string", value)),
        };
        /// Returns the 32-bit floats of a key.
        f32_array, opt_f32_array -> &[f32], |key, value| match value {
            Value::Array(Array::F32(numbers)) => Ok(numbers.as_slice()),
            _ => Err(wrong_type(key, "array of f32", value)),
        };
        /// Returns the booleans of a key.
        bool_array, opt_bool_array -> &[bool], |key, value| match value {
            Value::Array(Array::Bool(claims)) => Ok(claims.as_slice()),
            _ => Err(wrong_type(key, "array of bool", value)),
        };
        /// Returns the bytes of a key.
        u8_array, opt_u8_array -> Cow<'_, [u8]>, |key, value| match value {
            Value::Array(Array::U8(bytes)) => Ok(Cow::Borrowed(bytes.as_slice())),
            // Some writers store bytes as signed numbers; only the bits matter.
            Value::Array(Array::I8(bytes)) => Ok(Cow::Owned(bytes.iter().map(|&byte| byte as u8).collect())),
            _ => Err(wrong_type(key, "array of u8", value)),
        };
        /// Returns the unsigned 32-bit integers of a key.
        u32_array, opt_u32_array -> Cow<'_, [u32]>, |key, value| match value {
            Value::Array(Array::U32(numbers)) => Ok(Cow::Borrowed(numbers.as_slice())),
            _ => integers(key, value, "u32", "array of u32").map(Cow::Owned),
        };
        /// Returns the signed 32-bit integers of a key.
        i32_array, opt_i32_array -> Cow<'_, [i32]>, |key, value| match value {
            Value::Array(Array::I32(numbers)) => Ok(Cow::Borrowed(numbers.as_slice())),
            _ => integers(key, value, "i32", "array of i32").map(Cow::Owned),
        };
    }

    /// Creates empty metadata.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// [`GgufError::DuplicateKey`], [`GgufError::EmptyKey`] or [`GgufError::KeyTooLong`].
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Result<(), GgufError> {
        let key = key.into();
        if key.is_empty() {
            return Err(GgufError::EmptyKey { index: self.len() });
        }
        if key.len() > MAX_KEY_BYTES {
            return Err(GgufError::KeyTooLong {
                n_bytes: key.len(),
                maximum: MAX_KEY_BYTES,
            });
        }
        if self.index.contains_key(&key) {
            return Err(GgufError::DuplicateKey { key });
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value.into()));
        Ok(())
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&entry_idx| &self.entries[entry_idx].1)
    }

    /// Returns the entries in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the `n` integers of a key that holds either one for all layers or one per layer.
    ///
    /// # Errors
    /// [`GgufError::WrongType`], [`GgufError::OutOfRange`], or [`GgufError::WrongLength`] if an array has
    /// fewer than `n` elements.
    pub fn opt_u32_per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        if !matches!(value, Value::Array(_)) {
            return Ok(Some(vec![integer(key, value, "u32")?; n]));
        }
        let mut numbers: Vec<u32> = integers(key, value, "u32", "u32 or array of u32")?;
        if numbers.len() < n {
            return Err(GgufError::WrongLength {
                key: key.to_owned(),
                expected: n,
                found: numbers.len(),
            });
        }
        numbers.truncate(n);
        Ok(Some(numbers))
    }
}

fn wrong_type(key: &str, expected: &'static str, found: &Value) -> GgufError {
    GgufError::WrongType {
        key: key.to_owned(),
        expected,
        found: found.describe_type(),
    }
}

fn integer<T: TryFrom<i128>>(key: &str, value: &Value, expected: &'static str) -> Result<T, GgufError> {
    let number = value
        .as_integer()
        .ok_or_else(|| wrong_type(key, expected, value))?;
    fit(key, number, expected)
}

fn fit<T: TryFrom<i128>>(key: &str, value: i128, expected: &'static str) -> Result<T, GgufError> {
    T::try_from(value).map_err(|_| GgufError::OutOfRange {
        key: key.to_owned(),
        expected,
        value,
    })
}

fn integers<T: TryFrom<i128>>(
    key: &str,
    value: &Value,
    element: &'static str,
    expected: &'static str,
) -> Result<Vec<T>, GgufError> {
    fn fit_all<T: TryFrom<i128>, N: Copy + Into<i128>>(
        key: &str,
        numbers: &[N],
        element: &'static str,
    ) -> Result<Vec<T>, GgufError> {
        numbers
            .iter()
            .map(|&number| fit(key, number.into(), element))
            .collect()
    }
    let Value::Array(array) = value else {
        return Err(wrong_type(key, expected, value));
    };
    match array {
        Array::U8(numbers) => fit_all(key, numbers, element),
        Array::I8(numbers) => fit_all(key, numbers, element),
        Array::U16(numbers) => fit_all(key, numbers, element),
        Array::I16(numbers) => fit_all(key, numbers, element),
        Array::U32(numbers) => fit_all(key, numbers, element),
        Array::I32(numbers) => fit_all(key, numbers, element),
        Array::U64(numbers) => fit_all(key, numbers, element),
        Array::I64(numbers) => fit_all(key, numbers, element),
        _ => Err(wrong_type(key, expected, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("small", 7_u8).unwrap();
        metadata.insert("negative", -1_i32).unwrap();
        metadata.insert("ratio", 0.5_f64).unwrap();
        metadata.insert("layers", vec![1_i32, 2, 3]).unwrap();
        metadata.insert("scores", vec![0_u8, 1]).unwrap();
        metadata
    }

    fn check_error<T: std::fmt::Debug>(result: Result<T, GgufError>, expected: &str) {
        assert_eq!(result.unwrap_err().to_string(), expected);
    }

    #[test]
    fn integers_may_have_any_width_that_fits() {
        let metadata = sample();
        assert_eq!(metadata.u32("small").unwrap(), 7);
        assert_eq!(metadata.u32_array("layers").unwrap().as_ref(), [1, 2, 3]);
        assert_eq!(metadata.f32("ratio").unwrap(), 0.5);
        check_error(
            metadata.u32("negative"),
            "metadata key `negative` is -1, which does not fit u32",
        );
    }

    #[test]
    fn errors_name_key_expected_and_found_type() {
        let metadata = sample();
        check_error(metadata.u32("absent"), "metadata key `absent` is missing");
        check_error(
            metadata.bool("small"),
            "metadata key `small` has type u8, expected bool",
        );
        check_error(
            metadata.opt_f32_array("scores"),
            "metadata key `scores` has type array of u8, expected array of f32",
        );
    }

    #[test]
    fn one_number_serves_all_layers_and_an_array_must_reach() {
        let metadata = sample();
        assert_eq!(metadata.opt_u32_per_layer("small", 2).unwrap(), Some(vec![7, 7]));
        assert_eq!(metadata.opt_u32_per_layer("layers", 2).unwrap(), Some(vec![1, 2]));
        assert_eq!(metadata.opt_u32_per_layer("absent", 2).unwrap(), None);
        check_error(
            metadata.opt_u32_per_layer("layers", 4),
            "metadata key `layers` has 3 elements, expected 4",
        );
    }

    #[test]
    fn insert_refuses_what_a_reader_would_refuse() {
        let mut metadata = sample();
        check_error(
            metadata.insert("small", 1_u8),
            "metadata key `small` occurs twice",
        );
        check_error(metadata.insert("", 1_u8), "metadata entry 5 has an empty key");
        assert!(metadata.insert("k".repeat(MAX_KEY_BYTES), 1_u8).is_ok());
        check_error(
            metadata.insert("k".repeat(MAX_KEY_BYTES + 1), 1_u8),
            "a metadata key of 65536 bytes is longer than the 65535 allowed",
        );
    }
}
