//! Converts OpenMetrics text to Prometheus' text format 0.0.4, which every scraper reads.
//!
//! The metrics are written once, as OpenMetrics. The formats differ in a few lines: the older one declares a
//! counter under the name of its samples, with `_total`, and knows neither units nor an end mark.

/// llama.cpp's counters without the suffix that OpenMetrics requires.
const OWN_COUNTERS: [&str; 1] = ["llamacpp:n_tokens_max"];

/// Writes OpenMetrics text of gauges, counters and histograms in the older format.
pub(crate) fn prometheus_text(open_metrics: &str) -> String {
    let counters: Vec<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let declared = ["# HELP ", "# TYPE "].into_iter().find_map(|keyword| {
            let (name, rest) = line.strip_prefix(keyword)?.split_once(' ')?;
            Some((keyword, name, rest))
        });
        match declared {
            Some((keyword, name, rest)) if counters.contains(&name) => {
                text.extend([keyword, name, "_total ", rest, "\n"]);
            }
            Some(("# TYPE ", name, _)) if OWN_COUNTERS.contains(&name) => {
                text.extend(["# TYPE ", name, " counter\n"]);
            }
            None if line == "# EOF" || line.starts_with("# UNIT ") => {}
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

/// Joins several OpenMetrics texts: a metric in more than one of them is declared once, with the samples of all.
pub(crate) fn joined(texts: &[String]) -> String {
    let mut families: Vec<(&str, Vec<&str>, Vec<&str>)> = Vec::new();
    for text in texts {
        let mut place = None;
        for line in text.lines().filter(|line| *line != "# EOF") {
            let Some(declared) = line.strip_prefix("# ") else {
                // A sample without a declaration before it is not written.
                if let Some(place) = place {
                    let (_, _, samples): &mut (_, _, Vec<&str>) = &mut families[place];
                    samples.push(line);
                }
                continue;
            };
            let name = declared.split(' ').nth(1).unwrap_or_default();
            let found = families.iter().position(|(family, ..)| *family == name);
            let found = found.unwrap_or_else(|| {
                families.push((name, Vec::new(), Vec::new()));
                families.len() - 1
            });
            let declarations = &mut families[found].1;
            if !declarations.contains(&line) {
                declarations.push(line);
            }
            place = Some(found);
        }
    }
    let mut joined = String::new();
    for (_, declarations, samples) in families {
        for line in declarations.into_iter().chain(samples) {
            joined.extend([line, "\n"]);
        }
    }
    joined.push_str("# EOF\n");
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_several_models_are_declared_once() {
        let text = |model: &str| {
            format!(
                "# HELP a Steps.\n# TYPE a counter\na_total{{m=\"{model}\"}} 3\n# HELP b Now.\n# TYPE b gauge\nb{{m=\"{model}\"}} 1\n# EOF\n"
            )
        };
        let own = "# HELP b Now.\n# TYPE b gauge\nb 7\n# EOF\n".to_owned();
        assert_eq!(
            joined(&[own, text("x"), text("y")]),
            "# HELP b Now.\n# TYPE b gauge\nb 7\nb{m=\"x\"} 1\nb{m=\"y\"} 1\n\
             # HELP a Steps.\n# TYPE a counter\na_total{m=\"x\"} 3\na_total{m=\"y\"} 3\n# EOF\n"
        );
    }

    #[test]
    fn counters_are_declared_under_the_name_of_their_samples() {
        let open_metrics = "# HELP a Steps of it.\n# TYPE a counter\na_total{m=\"x\"} 3\n\
                            # HELP b Now.\n# TYPE b gauge\nb 1\n\
                            # HELP c Time.\n# TYPE c histogram\n# UNIT c seconds\nc_sum 0.5\nc_count 1\n\
                            c_bucket{le=\"+Inf\"} 1\n# EOF\n";
        assert_eq!(
            prometheus_text(open_metrics),
            "# HELP a_total Steps of it.\n# TYPE a_total counter\na_total{m=\"x\"} 3\n\
             # HELP b Now.\n# TYPE b gauge\nb 1\n\
             # HELP c Time.\n# TYPE c histogram\nc_sum 0.5\nc_count 1\nc_bucket{le=\"+Inf\"} 1\n"
        );
    }
}
