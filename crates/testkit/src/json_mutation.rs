//! Mutations of JSON that keep most of its structure, for tests and fuzz targets alike.
//!
//! Random bytes hardly get past a parser: a mutated file should pass most checks. Invariants: only `choose` decides, so a case
//! can be run again; it is called with the number of choices, at least 1, and returns one below it. The file names nothing of
//! this crate, so that fuzz targets may include it by path.

use serde_json::{Map, Number, Value};

/// Numbers at which sizes, signs and precisions end.
const EDGES: [f64; 12] = [
    0.0,
    -1.0,
    1.0,
    0.5,
    31.0,
    65_536.0,
    2_147_483_647.0,
    4_294_967_296.0,
    9_007_199_254_740_993.0,
    18_446_744_073_709_551_615.0,
    1e308,
    -1e-308,
];

/// Most elements that a list is grown to at a time.
const MAX_COPIES: usize = 80;

/// Changes one place of a document. `fragments` are pieces of the format, which may be inserted anywhere.
pub fn mutate_json(json: &mut Value, fragments: &[Value], choose: &mut dyn FnMut(usize) -> usize) {
    let n_nodes = count(json);
    let donor = node(json, &mut choose(n_nodes)).cloned().unwrap_or_default();
    let target = node_mut(json, &mut choose(n_nodes)).expect("the index is below the number of nodes");
    match choose(8) {
        0 if !fragments.is_empty() => *target = fragments[choose(fragments.len())].clone(),
        1 => *target = scalar(choose),
        2 => *target = donor,
        3 => *target = Value::Array(vec![target.take()]),
        4 => nudge(target, choose),
        5 => remove_one(target, choose),
        6 => copy_one(target, choose),
        _ => add_one(target, donor, choose),
    }
}

/// Counts the nodes of a document; each is a target of [`mutate_json`].
pub fn count(json: &Value) -> usize {
    1 + match json {
        Value::Array(items) => items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// Finds the node that comes `index` nodes after this one, in the order of the text.
pub fn node<'j>(json: &'j Value, index: &mut usize) -> Option<&'j Value> {
    if *index == 0 {
        return Some(json);
    }
    *index -= 1;
    match json {
        Value::Array(items) => items.iter().find_map(|item| node(item, index)),
        Value::Object(fields) => fields.values().find_map(|item| node(item, index)),
        _ => None,
    }
}

fn node_mut<'j>(json: &'j mut Value, index: &mut usize) -> Option<&'j mut Value> {
    if *index == 0 {
        return Some(json);
    }
    *index -= 1;
    match json {
        Value::Array(items) => items.iter_mut().find_map(|item| node_mut(item, index)),
        Value::Object(fields) => fields.values_mut().find_map(|item| node_mut(item, index)),
        _ => None,
    }
}

fn scalar(choose: &mut dyn FnMut(usize) -> usize) -> Value {
    match choose(6) {
        0 => Value::Null,
        1 => Value::Bool(choose(2) == 1),
        2 => Value::from(""),
        3 => Value::from("e".repeat(1 << choose(11))),
        4 => Value::from("\0\u{fffd}\u{301}\u{1f469}\u{200d}"),
        _ => number(EDGES[choose(EDGES.len())]),
    }
}

fn number(value: f64) -> Value {
    if value.fract() == 0.0 && (0.0..=18_446_744_073_709_551_615.0).contains(&value) {
        return Value::from(value as u64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// Changes a scalar a little; turns a list around.
fn nudge(target: &mut Value, choose: &mut dyn FnMut(usize) -> usize) {
    match target {
        Value::Null => *target = Value::from(0),
        Value::Bool(claim) => *claim = !*claim,
        Value::Number(old) => {
            let old = old.as_f64().unwrap_or(0.0);
            *target = number([old + 1.0, old - 1.0, old * 2.0, -old][choose(4)]);
        }
        Value::String(text) => {
            let at = choose(text.len() + 1);
            let at = (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.insert_str(at, ["e", " ", "\u{2581}", "\\", "(", "*", "<s>"][choose(7)]);
        }
        Value::Array(items) => items.reverse(),
        Value::Object(_) => {}
    }
}

fn remove_one(target: &mut Value, choose: &mut dyn FnMut(usize) -> usize) {
    match target {
        Value::Array(items) if !items.is_empty() => drop(items.remove(choose(items.len()))),
        Value::Object(fields) if !fields.is_empty() => {
            let key = key_of(fields, choose);
            fields.remove(&key);
        }
        other => *other = Value::Null,
    }
}

fn copy_one(target: &mut Value, choose: &mut dyn FnMut(usize) -> usize) {
    match target {
        Value::Array(items) if !items.is_empty() => {
            let item = items[choose(items.len())].clone();
            // A list that has already grown several times is long enough.
            if items.len() < 1000 {
                items.resize(items.len() + 1 + choose(MAX_COPIES), item);
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let (from, to) = (key_of(fields, choose), key_of(fields, choose));
            let value = fields[&from].clone();
            fields.insert(to, value);
        }
        other => *other = scalar(choose),
    }
}

fn add_one(target: &mut Value, donor: Value, choose: &mut dyn FnMut(usize) -> usize) {
    match target {
        Value::Array(items) => items.insert(choose(items.len() + 1), donor),
        Value::Object(fields) if !fields.is_empty() => {
            let key = format!("{}e", key_of(fields, choose));
            fields.insert(key, donor);
        }
        other => *other = donor,
    }
}

fn key_of(fields: &Map<String, Value>, choose: &mut dyn FnMut(usize) -> usize) -> String {
    fields
        .keys()
        .nth(choose(fields.len()))
        .expect("an index below the number")
        .clone()
}
