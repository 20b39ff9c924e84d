//! [`Value`]: one metadata value of any type that the format defines.
//!
//! The parser and the writer share it. Invariant: an array holds elements of one type and never arrays;
//! numbers are stored in the width of the file, so that a file round-trips.

use std::fmt;

/// Defines the value enums and their conversions from one table of number types.
macro_rules! values {
    ($($name:ident($ty:ty) = $id:literal, $text:literal;)*) => {
        /// A metadata value.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Value {
            $(#[doc = concat!("`", $text, "`.")] $name($ty),)*
            /// Text.
            String(String),
            /// Elements of one type.
            Array(Array),
        }

        /// An array of metadata values, all of one type.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Array {
            $(#[doc = concat!("Elements of type `", $text, "`.")] $name(Vec<$ty>),)*
            /// Texts.
            String(StringArray),
        }

        /// The type of a metadata value, or of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum ValueType {
            $(#[doc = concat!("`", $text, "`.")] $name = $id,)*
            /// Text.
            String = 8,
            /// Elements of one type.
            Array = 9,
        }

        impl ValueType {
            /// Returns the type with this id.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$name),)*
                    8 => Some(Self::String),
                    9 => Some(Self::Array),
                    _ => None,
                }
            }

            /// Returns the name of the type, such as `u32`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::String => "string",
                    Self::Array => "array",
                }
            }
        }

        impl Value {
            /// Returns the type of this value.
            pub const fn value_type(&self) -> ValueType {
                match self {
                    $(Self::$name(_) => ValueType::$name,)*
                    Self::String(_) => ValueType::String,
                    Self::Array(_) => ValueType::Array,
                }
            }
        }

        impl Array {
            /// Returns the type of the elements.
            pub const fn element_type(&self) -> ValueType {
                match self {
                    $(Self::$name(_) => ValueType::$name,)*
                    Self::String(_) => ValueType::String,
                }
            }

            /// Returns the number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$name(elements) => elements.len(),)*
                    Self::String(elements) => elements.len(),
                }
            }
        }

        $(
            impl From<$ty> for Value {
                fn from(value: $ty) -> Self {
                    Self::$name(value)
                }
            }

            impl From<Vec<$ty>> for Value {
                fn from(elements: Vec<$ty>) -> Self {
                    Self::Array(Array::$name(elements))
                }
            }
        )*
    };
}

values! {
    U8(u8) = 0, "u8";
    I8(i8) = 1, "i8";
    U16(u16) = 2, "u16";
    I16(i16) = 3, "i16";
    U32(u32) = 4, "u32";
    I32(i32) = 5, "i32";
    F32(f32) = 6, "f32";
    Bool(bool) = 7, "bool";
    U64(u64) = 10, "u64";
    I64(i64) = 11, "i64";
    F64(f64) = 12, "f64";
}

impl ValueType {
    /// Returns the id that files store.
    pub const fn id(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Value {
    /// Returns this value as an integer of any width; `None` if it is not an integer.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U64(value) => value.into(),
            Self::I64(value) => value.into(),
            _ => return None,
        })
    }

    /// Describes this value's type for an error message; arrays include the type of their elements.
    pub(crate) fn describe_type(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.element_type()),
            _ => self.value_type().to_string(),
        }
    }
}

impl Array {
    /// Returns whether the array has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<StringArray> for Value {
    fn from(strings: StringArray) -> Self {
        Self::Array(Array::String(strings))
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}

/// Many strings in one allocation: a vocabulary has hundreds of thousands.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StringArray {
    text: String,
    /// End of each string in `text`.
    ends: Vec<usize>,
}

impl StringArray {
    /// Creates an empty array.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a string.
    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there is no string.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the string at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    /// Returns the strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.len()).map(|index| self.get(index).expect("an index below the length"))
    }

    /// Returns the bytes of all strings together.
    pub fn total_bytes(&self) -> usize {
        self.text.len()
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut array = Self::new();
        for string in strings {
            array.push(string.as_ref());
        }
        array
    }
}

impl fmt::Debug for StringArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_array_keeps_order_and_empty_strings() {
        let array: StringArray = ["", "a", "", "bc"].into_iter().collect();
        assert_eq!(array.iter().collect::<Vec<_>>(), ["", "a", "", "bc"]);
        assert_eq!(array.get(4), None);
        assert_eq!(array.total_bytes(), 3);
    }

    #[test]
    fn value_types_map_to_their_ids_and_back() {
        for id in 0..=12 {
            assert_eq!(ValueType::from_id(id).map(ValueType::id), Some(id));
        }
        assert_eq!(ValueType::from_id(13), None);
    }
}
