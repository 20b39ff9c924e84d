//! [`Arguments`]: the evaluated arguments of a call, and how Python binds them to names.
//!
//! Filters, tests, methods and functions all take them. Invariant: binding refuses what Python refuses: too many,
//! unknown ones, and one given twice.

use std::rc::Rc;

use super::{error::Fault, value::Value};

/// Evaluated arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) keyword: Vec<(Rc<str>, Value)>,
}

impl Arguments {
    /// Positional arguments alone.
    pub(super) fn of(positional: &[Value]) -> Self {
        Self {
            positional: positional.to_vec(),
            keyword: Vec::new(),
        }
    }

    pub(super) fn take_keyword(&mut self, name: &str) -> Option<Value> {
        let at = self.keyword.iter().position(|(keyword, _)| &**keyword == name)?;
        Some(self.keyword.remove(at).1)
    }

    /// Returns the arguments in the order of `names`, as Python binds them.
    pub(super) fn bind<const N: usize>(
        &self,
        function: &str,
        names: [&str; N],
    ) -> Result<[Option<Value>; N], Fault> {
        if self.positional.len() > N {
            return Err(Fault::Type(format!(
                "{function} takes at most {N} arguments ({} given)",
                self.positional.len()
            )));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(&self.positional) {
            *slot = Some(value.clone());
        }
        for (keyword, value) in &self.keyword {
            match names.iter().position(|name| **name == **keyword) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value.clone()),
                Some(_) => {
                    return Err(Fault::Type(format!(
                        "{function} got multiple values for argument '{keyword}'"
                    )));
                }
                None => {
                    return Err(Fault::Type(format!(
                        "{function} got an unexpected keyword argument '{keyword}'"
                    )));
                }
            }
        }
        Ok(bound)
    }
}
