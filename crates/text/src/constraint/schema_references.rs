//! Finds the references of a JSON schema, and the numbers in it that are slow to compile.
//!
//! Nothing is changed here. Invariant: an unresolved reference counts as a reference to every possible target, and a value that only
//! looks like a reference (in an `enum`) counts too.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    chains::{Longest, References},
    references::without_percents,
};

/// Keywords that give a schema another name than its path.
const NAMES: [&str; 5] = ["$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"];

/// Keywords that refer to another schema.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Keywords that may merge several schemas into one.
const JOINING: [&str; 8] = [
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "dependentSchemas",
];

/// Most bytes of pointers that are looked up, each of them at every value at which a pointer may start.
const MAX_LOOKED_UP_BYTES: usize = 32 << 20;

/// Cost of a lookup next to its pointer, in bytes.
const LOOK_UP_BYTES: usize = 16;

/// Finds the longest path along the references of a schema; `None` if its references times its names are too many.
pub(super) fn longest(schema: &Value) -> Option<Longest> {
    let mut found = Found::default();
    found.look_through(schema);
    Some(found.references(schema)?.longest())
}

/// Collects a schema's references and names.
#[derive(Debug, Default)]
struct Found<'s> {
    /// Every reference.
    references: Vec<&'s str>,
    /// The values that have a name.
    named: Vec<Place>,
    /// The values at which a pointer may start.
    bases: Vec<&'s Value>,
}

/// Address of a value, which identifies it while the schema is borrowed.
type Place = usize;

fn place(value: &Value) -> Place {
    std::ptr::from_ref(value) as usize
}

/// Lists the references directly in a value.
fn references_in(value: &Value) -> impl Iterator<Item = &str> {
    REFERENCES.iter().filter_map(|name| value.get(name)?.as_str())
}

impl<'s> Found<'s> {
    fn look_through(&mut self, schema: &'s Value) {
        self.bases.push(schema);
        let mut open = vec![schema];
        while let Some(value) = open.pop() {
            match value {
                Value::Object(fields) => {
                    self.references.extend(references_in(value));
                    let names = NAMES.iter().filter_map(|name| fields.get(*name));
                    // An object here is a property of that name.
                    if names.into_iter().any(|name| !name.is_object()) {
                        self.named.push(place(value));
                        self.bases.push(value);
                    }
                    open.extend(fields.values());
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
    }

    /// Builds the graph of references; `None` if finding their targets takes too long.
    fn references(&self, schema: &Value) -> Option<References> {
        let mut references = References::default();
        let mut nodes: HashMap<Place, usize> = HashMap::new();
        for &target in [place(schema)].iter().chain(&self.named) {
            nodes.entry(target).or_insert_with(|| references.add());
        }
        // References share these nodes, because many of them may lead to any of many values.
        let (any_named, any_base) = (references.add_choice(), references.add_choice());
        for target in &self.named {
            references.refer(any_named, nodes[target], 0);
        }
        references.refer(any_base, any_named, 0);
        references.refer(any_base, nodes[&place(schema)], 0);
        let mut choices: HashMap<&str, usize> = HashMap::new();
        let mut n_left = MAX_LOOKED_UP_BYTES;
        for &to in &self.references {
            if choices.contains_key(to) {
                continue;
            }
            let choice = references.add_choice();
            choices.insert(to, choice);
            let (base, fragment) = to.split_once('#').unwrap_or((to, ""));
            if fragment.starts_with('/') {
                let n_bytes = (fragment.len() + LOOK_UP_BYTES).saturating_mul(self.bases.len());
                n_left = n_left.checked_sub(n_bytes)?;
                let pointer = without_percents(fragment);
                for target in self.bases.iter().filter_map(|base| base.pointer(&pointer)) {
                    let node = *nodes.entry(place(target)).or_insert_with(|| references.add());
                    references.refer(choice, node, 0);
                }
            } else if fragment.is_empty() {
                references.refer(choice, any_base, 0);
            }
            if !base.is_empty() || !(fragment.is_empty() || fragment.starts_with('/')) {
                references.refer(choice, any_named, 0);
            }
        }
        // Each value with its node and its level in that node.
        let mut open = vec![(schema, nodes[&place(schema)], 1)];
        while let Some((value, outer, level)) = open.pop() {
            let (node, level) = match nodes.get(&place(value)) {
                Some(&node) if node != outer => {
                    references.refer(outer, node, level);
                    (node, 1)
                }
                _ => (outer, level),
            };
            references.deepen(node, level);
            for to in references_in(value) {
                references.refer(node, choices[to], level);
            }
            match value {
                Value::Object(fields) => {
                    open.extend(fields.values().map(|value| (value, node, level + 1)));
                }
                Value::Array(items) => open.extend(items.iter().map(|value| (value, node, level + 1))),
                _ => {}
            }
        }
        Some(references)
    }
}

/// Counts the properties of all objects of a schema.
pub(super) fn n_properties(schema: &Value) -> usize {
    let mut n = 0;
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                let named = ["properties", "patternProperties"].iter();
                n += named
                    .filter_map(|name| Some(fields.get(*name)?.as_object()?.len()))
                    .sum::<usize>();
                open.extend(fields.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    n
}

/// Counts the pairs of a listed value and a rule about texts that are merged, each of which the compiler checks on its own. A long pattern
/// counts several times.
pub(super) fn n_checked_values(schema: &Value) -> usize {
    let mut merged = Merged {
        root: schema,
        all: Count::default(),
        found: HashMap::new(),
    };
    let mut joints = Vec::new();
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                merged.all = merged.all.plus(Count::of(fields));
                let is_joint = Count::of(fields) != Count::default()
                    || ["allOf", "anyOf", "oneOf"]
                        .iter()
                        .any(|name| fields.contains_key(*name));
                if is_joint {
                    joints.push(value);
                }
                open.extend(fields.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    joints.into_iter().fold(0_usize, |n, value| {
        let Count { values, rules } = merged.at(value, 0);
        n.saturating_add(values.saturating_mul(rules))
    })
}

/// Listed values and rules about texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    values: usize,
    rules: usize,
}

impl Count {
    /// Bytes of a pattern that cost as much as a format.
    const PATTERN_BYTES: usize = 100;

    /// Counts those directly in a schema.
    fn of(fields: &Map<String, Value>) -> Self {
        let listed = fields.get("enum").and_then(Value::as_array).map_or(0, Vec::len);
        let pattern = fields.get("pattern").and_then(Value::as_str);
        let others = ["format", "minLength", "maxLength"];
        Self {
            values: listed + usize::from(fields.contains_key("const")),
            rules: pattern.map_or(0, |pattern| 1 + pattern.len() / Self::PATTERN_BYTES)
                + others.iter().filter(|name| fields.contains_key(**name)).count(),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            values: self.values.saturating_add(other.values),
            rules: self.rules.saturating_add(other.rules),
        }
    }
}

/// Counts what a schema and all that are merged with it list and demand.
struct Merged<'s> {
    root: &'s Value,
    /// The whole schema, which a reference to a name may mean.
    all: Count,
    /// `None` while a value is looked at.
    found: HashMap<Place, Option<Count>>,
}

impl<'s> Merged<'s> {
    /// Deepest chain that is followed; longer ones are refused anyway.
    const MAX_DEPTH: usize = 1000;

    fn at(&mut self, value: &'s Value, depth: usize) -> Count {
        let Value::Object(fields) = value else {
            return Count::default();
        };
        if let Some(found) = self.found.get(&place(value)) {
            return found.unwrap_or_default();
        }
        if depth > Self::MAX_DEPTH {
            return Count::default();
        }
        self.found.insert(place(value), None);
        let mut count = Count::of(fields);
        for list in ["allOf", "anyOf", "oneOf"] {
            for item in fields.get(list).and_then(Value::as_array).into_iter().flatten() {
                count = count.plus(self.at(item, depth + 1));
            }
        }
        for reference in references_in(value) {
            let target = match reference.strip_prefix('#') {
                Some("") => Some(self.root),
                Some(pointer) => self.root.pointer(&without_percents(pointer)),
                None => None,
            };
            count = count.plus(match target {
                Some(target) => self.at(target, depth + 1),
                None => self.all,
            });
        }
        self.found.insert(place(value), Some(count));
        count
    }
}

/// Finds a `multipleOf` whose divisibility test takes more than `maximum` states, by itself or together with others that are merged with
/// it.
pub(super) fn long_multiple(schema: &Value, maximum: u64) -> Option<String> {
    let (mut joins, mut together) = (false, 1_u64);
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                joins |= JOINING.iter().any(|name| fields.contains_key(*name));
                if let Some(Value::Number(number)) = fields.get("multipleOf") {
                    let text = number.to_string();
                    let Some(whole) = whole(&text).filter(|whole| *whole <= maximum) else {
                        return Some(text);
                    };
                    together = least_common_multiple(together, whole.max(1));
                }
                open.extend(fields.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    (joins && together > maximum).then(|| together.to_string())
}

/// Reads a decimal number as an integer, without its point; `None` if it is too long.
fn whole(number: &str) -> Option<u64> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (before, behind) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let behind = behind.trim_end_matches('0');
    let whole: u64 = format!("{}{behind}", before.trim_start_matches('-'))
        .parse()
        .ok()?;
    let shift = exponent.parse::<i64>().ok()? - behind.len() as i64;
    match u32::try_from(shift) {
        Ok(shift) if whole > 0 => whole.checked_mul(10_u64.checked_pow(shift)?),
        _ => Some(whole),
    }
}

fn least_common_multiple(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn chain(n: usize, link: impl Fn(String) -> Value) -> Value {
        let mut defs: Map<String, Value> = (0..n)
            .map(|idx| (format!("a{idx}"), link(format!("#/$defs/a{}", idx + 1))))
            .collect();
        defs.insert(format!("a{n}"), json!({"type": "string"}));
        json!({"$defs": defs, "$ref": "#/$defs/a0"})
    }

    #[test]
    fn references_are_followed_wherever_they_lead() {
        let check = |schema: &Value, expected: usize| {
            assert_eq!(longest(schema).unwrap().n_nodes, expected, "{schema}");
        };
        check(&json!({"type": "string"}), 1);
        check(&json!({"properties": {"a": {"$ref": "#"}}}), 1);
        check(&json!({"properties": {"a": {"$ref": "#/nowhere"}}}), 1);
        // The root and eleven definitions.
        check(&chain(10, |to| json!({"$ref": to})), 12);
        check(
            &chain(10, |to| json!({"anyOf": [{"$ref": to}, {"type": "null"}]})),
            12,
        );
        check(
            &chain(10, |to| json!({"items": {"$ref": to.replace('$', "%24")}})),
            12,
        );
        check(
            &json!({"$defs": {"a~/b": {"$ref": "#/$defs/c"}, "c": true}, "$ref": "#/$defs/a~0~1b"}),
            3,
        );
        // By names and identifiers.
        let named =
            json!({"$defs": {"a": {"$anchor": "x", "$ref": "#y"}, "b": {"$anchor": "y"}}, "$ref": "#x"});
        assert!(longest(&named).unwrap().n_nodes >= 3);
        let of_id = json!({"$id": "http://a/", "$defs": {"b": {"$id": "b", "$defs": {"c": {"$ref": "#/$defs/d"}, "d": {}}}},
            "$ref": "b#/$defs/c"});
        assert!(longest(&of_id).unwrap().n_nodes >= 3);
        // A property named `$ref` is not a reference.
        check(&json!({"properties": {"$ref": {"type": "string"}}}), 1);
    }

    #[test]
    fn levels_between_references_count() {
        let plain = longest(&chain(10, |to| json!({"$ref": to}))).unwrap();
        let deep = longest(&chain(
            10,
            |to| json!({"properties": {"a": {"items": {"items": {"$ref": to}}}}}),
        ))
        .unwrap();
        assert_eq!(plain.n_nodes, deep.n_nodes);
        assert!(deep.n_levels >= plain.n_levels + 40, "{plain:?} {deep:?}");
    }

    #[test]
    fn long_chains_and_wide_schemas_are_counted_in_a_moment() {
        let n = 20_000;
        let long = longest(&chain(n, |to| json!({"$ref": to}))).unwrap();
        assert_eq!(long.n_nodes, n + 2);
        let wide: Map<String, Value> = (0..n)
            .map(|idx| (format!("p{idx}"), json!({"$ref": "#/$defs/a0"})))
            .collect();
        let mut schema = chain(5, |to| json!({"$ref": to}));
        schema["properties"] = wide.into();
        assert_eq!(longest(&schema).unwrap().n_nodes, 7);
    }

    #[test]
    fn many_references_to_any_of_many_names_share_their_targets() {
        let n = 20_000;
        let of = |form: &dyn Fn(usize) -> String| -> Value {
            let objects = (0..n).map(|idx| json!({"$id": 0, "$ref": form(idx), "a": {}}));
            json!({"enum": objects.collect::<Vec<Value>>()})
        };
        for form in [
            &(|idx| format!("a{idx:05}")) as &dyn Fn(usize) -> String,
            &|idx| format!("#a{idx:05}"),
            &|idx| format!("a{idx:05}#"),
            &|_| "#/a".to_owned(),
        ] {
            let schema = of(form);
            let mut found = Found::default();
            found.look_through(&schema);
            let references = found.references(&schema).unwrap();
            let n_edges = references.n_references();
            assert!(n_edges < 10 * n, "{n_edges} references");
            assert!(references.longest().n_nodes >= 3);
        }
        assert_eq!(longest(&of(&|idx| format!("#/a{idx:05}"))), None);
    }

    #[test]
    fn listed_values_count_for_each_rule_that_they_are_merged_with() {
        let listed = |n: usize| json!((0..n).map(|idx| format!("w{idx}")).collect::<Vec<_>>());
        let n = |schema: Value| n_checked_values(&schema);
        assert_eq!(n(json!({"enum": listed(500)})), 0);
        assert_eq!(n(json!({"enum": listed(500), "format": "email"})), 500);
        assert_eq!(
            n(json!({"allOf": [{"enum": listed(7)}, {"format": "date", "maxLength": 6}]})),
            14
        );
        assert_eq!(n(json!({"const": "a", "pattern": "b".repeat(250)})), 3);
        let apart = json!({"properties": {"a": {"enum": listed(500)}, "b": {"pattern": "^x"}}});
        assert_eq!(n(apart), 0);
        // Through references, whatever they mean.
        let lists = json!({"l": {"enum": listed(9)}, "r": {"$ref": "#/$defs/p"}, "p": {"pattern": "x"}});
        let referring = |to: &str| json!({"$defs": lists, "allOf": [{"$ref": "#/$defs/l"}, {"$ref": to}]});
        assert_eq!(n(referring("#/$defs/r")), 9);
        assert!(n(referring("a-name")) >= 18);
        // A cycle ends, and a definition that is used often is merged once.
        assert_eq!(n(json!({"enum": listed(3), "format": "date", "$ref": "#"})), 3);
        let used = json!({"$defs": {"l": {"enum": listed(9), "minLength": 1}},
            "properties": {"a": {"$ref": "#/$defs/l"}, "b": {"$ref": "#/$defs/l"}}});
        assert_eq!(n(used), 9);
    }

    #[test]
    fn multiples_of_long_numbers_are_found() {
        let check = |schema: Value, is_long: bool| {
            assert_eq!(long_multiple(&schema, 10_000).is_some(), is_long, "{schema}");
        };
        let of = |number: &str| -> Value {
            serde_json::from_str(&format!("{{\"multipleOf\":{number}}}")).expect("JSON")
        };
        for short in [
            "1",
            "0.01",
            "0.25",
            "10000",
            "1e4",
            "1e-5",
            "0",
            "0.0000100",
            "250.0",
        ] {
            check(of(short), false);
        }
        for long in [
            "10007",
            "4999999",
            "0.10007",
            "4999999.0",
            "1e5",
            "1e300",
            "1.0000007e9",
            "100000000000000000000001",
        ] {
            check(of(long), true);
            check(json!({"properties": {"a": {"items": [of(long)]}}}), true);
        }
        let two = |keyword: &str| json!({keyword: [of("9973"), of("9967")]});
        check(two("allOf"), true);
        check(
            json!({"$ref": "#/$defs/a", "multipleOf": 9973, "$defs": {"a": of("9967")}}),
            true,
        );
        // Schemas of two properties are never merged.
        check(json!({"properties": {"a": of("9973"), "b": of("9967")}}), false);
    }
}
