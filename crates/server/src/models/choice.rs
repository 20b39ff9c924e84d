//! [`Choice`]: the model that a request is for, found before its endpoint reads it.
//!
//! The model must be loaded before the endpoint begins. Invariant: a body is searched once for a few names;
//! nothing of its other values is kept, and nothing of a list or an object in the place of a name.

use std::{borrow::Cow, fmt};

use axum::http::Uri;
use serde::{
    Deserializer as _,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;

use super::{KeepAlive, KeepAliveError, Role};
use crate::{
    ApiError,
    requests::{intake::check_weight, paths::unescaped, shape_sizes::check_sizes},
};

/// The model that a request names, and how it names it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    /// The name; `None` where it names none.
    pub(crate) model: Option<String>,
    /// The role that it asks for where it names none.
    pub(crate) role: Role,
    /// How long the model is to stay afterwards.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Whether it asks for nothing, as Ollama's clients do to load a model or to have it unloaded.
    pub(crate) is_empty: bool,
}

impl Choice {
    /// Reads a request with a body, which is for a model of this role if it names none.
    ///
    /// # Errors
    /// More values than may be parsed, a body that is not JSON, and values of another type than a name or a time.
    pub(crate) fn of(role: Role, uri: &Uri, body: &[u8]) -> Result<Self, ApiError> {
        let mut choice = Self {
            model: name_of_query(uri),
            role,
            ..Self::default()
        };
        // An array or nothing at all names no model.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Ok(choice);
        }
        check_sizes(body)?;
        check_weight(body)?;
        let found = look(body).map_err(|error| ApiError::MalformedJson {
            reason: error.to_string(),
        })?;
        for (field, value) in [("model", found.model), ("name", found.name)] {
            let name = match value {
                None | Some(Scalar(Some(Value::Null))) => continue,
                Some(Scalar(Some(Value::String(name)))) => name,
                Some(_) => return Err(ApiError::invalid(field, "expected a name")),
            };
            if choice.model.is_none() && !name.is_empty() {
                choice.model = Some(name);
            }
        }
        if uri.path().starts_with("/api/") {
            let keep_alive = found.keep_alive.filter(|value| value.0 != Some(Value::Null));
            let read = keep_alive.map(|value| match value.0 {
                Some(value) => KeepAlive::from_json(&value),
                None => Err(KeepAliveError),
            });
            let read = read.transpose();
            choice.keep_alive = read.map_err(|error| ApiError::invalid("keep_alive", error.to_string()))?;
            choice.is_empty = !found.asks;
        }
        Ok(choice)
    }

    /// Whether it wants a model to go and nothing else.
    pub(crate) fn is_dismissal(&self) -> bool {
        self.is_empty
            && self
                .keep_alive
                .and_then(KeepAlive::time)
                .is_some_and(|time| time.is_zero())
    }
}

/// The name in `?model=`, as llama.cpp's clients write it where there is no body.
pub(crate) fn name_of_query(uri: &Uri) -> Option<String> {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    let value = parameters.find_map(|parameter| parameter.strip_prefix("model="))?;
    Some(decoded(value)).filter(|name| !name.is_empty())
}

/// A value of a query without its escapes; other text stays as it is.
fn decoded(value: &str) -> String {
    String::from_utf8_lossy(&unescaped(&value.replace('+', " "))).into_owned()
}

#[derive(Default)]
struct Found {
    model: Option<Scalar>,
    name: Option<Scalar>,
    keep_alive: Option<Scalar>,
    /// Whether there is something to answer.
    asks: bool,
}

/// Looks through an object for the fields that matter here; of a field that is there twice the last counts, as in its endpoint.
fn look(body: &[u8]) -> Result<Found, serde_json::Error> {
    struct Look;
    impl<'de> Visitor<'de> for Look {
        type Value = Found;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Found, M::Error> {
            let mut found = Found::default();
            while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                match &*key {
                    "model" => found.model = Some(map.next_value()?),
                    "name" => found.name = Some(map.next_value()?),
                    "keep_alive" => found.keep_alive = Some(map.next_value()?),
                    "prompt" | "messages" | "input" | "suffix" => {
                        found.asks |= map.next_value::<IsSomething>()?.0;
                    }
                    _ => {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
            Ok(found)
        }
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let found = reader.deserialize_map(Look)?;
    reader.end()?;
    Ok(found)
}

/// A value that is neither a list nor an object; `None` of one that is, which is looked through and not kept.
struct Scalar(Option<Value>);

impl<'de> serde::Deserialize<'de> for Scalar {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar(Some(Value::Null)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(Some(text.into())))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.into())))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.into())))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.into())))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.into())))
            }

            fn visit_seq<S: serde::de::SeqAccess<'de>>(self, mut items: S) -> Result<Scalar, S::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar(None))
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Scalar, M::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar(None))
            }
        }
        reader.deserialize_any(Look)
    }
}

/// Whether a value is more than `null`, an empty text or an empty list.
struct IsSomething(bool);

impl<'de> serde::Deserialize<'de> for IsSomething {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
            type Value = IsSomething;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<IsSomething, E> {
                Ok(IsSomething(false))
            }

            fn visit_str<E>(self, text: &str) -> Result<IsSomething, E> {
                Ok(IsSomething(!text.is_empty()))
            }

            fn visit_bool<E>(self, _: bool) -> Result<IsSomething, E> {
                Ok(IsSomething(true))
            }

            fn visit_i64<E>(self, _: i64) -> Result<IsSomething, E> {
                Ok(IsSomething(true))
            }

            fn visit_u64<E>(self, _: u64) -> Result<IsSomething, E> {
                Ok(IsSomething(true))
            }

            fn visit_f64<E>(self, _: f64) -> Result<IsSomething, E> {
                Ok(IsSomething(true))
            }

            fn visit_seq<S: serde::de::SeqAccess<'de>>(self, mut items: S) -> Result<IsSomething, S::Error> {
                let mut is_something = false;
                while items.next_element::<IgnoredAny>()?.is_some() {
                    is_something = true;
                }
                Ok(IsSomething(is_something))
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<IsSomething, M::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(IsSomething(true))
            }
        }
        reader.deserialize_any(Look)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn choice(path: &str, body: &str) -> Result<Choice, ApiError> {
        Choice::of(Role::Chat, &path.parse().expect("a path"), body.as_bytes())
    }

    #[test]
    fn a_name_stands_in_the_body_or_in_the_query() {
        let check = |path: &str, body: &str, expected: Option<&str>| {
            let found = choice(path, body).expect("it is read");
            assert_eq!(found.model.as_deref(), expected, "{path} {body}");
        };
        check(
            "/v1/chat/completions",
            r#"{"messages":[{"model":"no"}],"model":"a"}"#,
            Some("a"),
        );
        check("/v1/chat/completions", r#"{"model":"a","model":null}"#, None);
        check("/v1/chat/completions", r#"{"model":""}"#, None);
        check("/api/show", r#"{"name":"b"}"#, Some("b"));
        check("/api/show", r#"{"name":"b","model":"a"}"#, Some("a"));
        check(
            "/slots/0?action=save&model=org%2Fa%3AQ4+x",
            "",
            Some("org/a:Q4 x"),
        );
        check("/slots/0?model=100%&x", "", Some("100%"));
        check("/lora-adapters", r#"[{"id":0,"scale":1}]"#, None);
        check("/v1/embeddings", r#"{"m\u006fdel":"a"}"#, Some("a"));
    }

    #[test]
    fn what_is_no_json_or_no_name_is_refused() {
        for body in [r#"{"model":"a""#, r#"{"model":"a"} x"#, r#"{"model":3}"#, "{]"] {
            assert!(choice("/v1/chat/completions", body).is_err(), "{body}");
        }
        assert!(choice("/api/chat", r#"{"keep_alive":"soon"}"#).is_err());
        assert!(choice("/api/chat", r#"{"keep_alive":[5]}"#).is_err());
        // `keep_alive` is not a field of other APIs; their tables refuse it later.
        assert!(choice("/v1/completions", r#"{"keep_alive":"soon"}"#).is_ok());
    }

    #[test]
    fn nothing_large_is_kept_in_the_place_of_a_name() {
        let found = look(br#"{"model":[{"":{}},3],"name":{"a":"b"},"keep_alive":5}"#).expect("it is JSON");
        let scalar = |value: Option<Scalar>| value.expect("it is there").0;
        assert_eq!(scalar(found.model), None);
        assert_eq!(scalar(found.name), None);
        assert_eq!(scalar(found.keep_alive), Some(5.into()));
        let bomb = format!(r#"{{"model":[{}]}}"#, vec![r#"{"":{}}"#; 1 << 20].join(","));
        let refused = choice("/v1/completions", &bomb);
        assert!(
            matches!(refused, Err(ApiError::TooManyValues { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn a_request_for_nothing_with_no_time_left_dismisses() {
        let check = |body: &str, expected: bool| {
            let found = choice("/api/generate", body).expect("it is read");
            assert_eq!(found.is_dismissal(), expected, "{body}");
        };
        check(r#"{"model":"a","keep_alive":0}"#, true);
        check(r#"{"model":"a","keep_alive":"0s","prompt":""}"#, true);
        check(r#"{"model":"a","keep_alive":0,"messages":[]}"#, true);
        check(r#"{"model":"a","keep_alive":0,"prompt":"Hi"}"#, false);
        check(r#"{"model":"a","keep_alive":0,"messages":[{}]}"#, false);
        check(r#"{"model":"a","keep_alive":5}"#, false);
        check(r#"{"model":"a"}"#, false);
        let five = choice("/api/generate", r#"{"keep_alive":"5m"}"#).expect("it is read");
        assert_eq!(five.keep_alive, Some(KeepAlive::For(Duration::from_mins(5))));
    }

    proptest! {
        #[test]
        fn no_body_makes_it_panic(body in "[\\[\\]{}\":,a-z0-9 modelkeep_iv\\\\%]{0,40}", query in "[a-z=&%0-9+]{0,20}") {
            let uri = format!("/api/chat?{query}").parse().expect("a path");
            let _ = Choice::of(Role::Chat, &uri, body.as_bytes());
        }
    }
}
