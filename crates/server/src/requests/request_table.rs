//! [`RequestTable`]: the fields of one request type, and the list of required fields.
//!
//! [`fields`](super::fields) handles one field at a time.

use super::fields::Field;

/// Returns a table of fields, some of which are put together at their first use.
type Fields = fn() -> &'static [Field];

/// A request type as its endpoint checks and documents it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTable {
    fields: Fields,
    /// Names of the required fields.
    pub(crate) required: &'static [&'static str],
    /// A field whose value is an object, and the fields of that object.
    pub(crate) inner: Option<(&'static str, Fields)>,
    /// Words after the paths in the title of its documentation.
    pub(crate) note: &'static str,
}

impl RequestTable {
    /// Joins the fields of a request and the names of the required ones.
    pub(crate) const fn new(fields: Fields, required: &'static [&'static str]) -> Self {
        Self {
            fields,
            required,
            inner: None,
            note: "",
        }
    }

    /// Returns the fields that may be in a request.
    pub(crate) fn fields(&self) -> &'static [Field] {
        (self.fields)()
    }

    /// Adds the fields of an object within the request.
    pub(crate) const fn with_inner(mut self, name: &'static str, fields: Fields) -> Self {
        self.inner = Some((name, fields));
        self
    }

    /// Adds words to the title of the documentation.
    pub(crate) const fn noted(mut self, note: &'static str) -> Self {
        self.note = note;
        self
    }
}

/// Declares a request type with its [`RequestTable`]: the struct, the table of its fields and the names of the required ones come
/// from one list. The type of an optional field is written without its `Option`. `others` are fields that no member reads.
macro_rules! request {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Name:ident {
            required { $($(#[$required_meta:meta])* $required:ident: $Required:ty = $required_note:literal,)* }
            optional { $($(#[$optional_meta:meta])* $optional:ident: $Optional:ty = $optional_note:literal,)* }
            others { $($other:expr,)* }
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, serde::Deserialize)]
        $vis struct $Name {
            $($(#[$required_meta])* $required: $Required,)*
            $($(#[$optional_meta])* $optional: Option<$Optional>,)*
        }

        impl $Name {
            /// The fields of the request.
            pub(crate) const TABLE: $crate::requests::request_table::RequestTable =
                $crate::requests::request_table::RequestTable::new(
                    || const {
                        &[
                            $($crate::requests::fields::yes(stringify!($required), $required_note),)*
                            $($crate::requests::fields::yes(stringify!($optional), $optional_note),)*
                            $($other,)*
                        ]
                    },
                    &[$(stringify!($required)),*],
                );
        }
    };
}
pub(crate) use request;
