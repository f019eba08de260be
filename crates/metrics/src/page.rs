//! A page of metrics in Prometheus's text format.
//!
//! ```text
//!   # HELP weft_operations_total Operations that ended.
//!   # TYPE weft_operations_total counter
//!   weft_operations_total{server="io0",op="read"} 17
//! ```

use crate::histogram::Histogram;
use std::fmt::{Display, Write};

/// What kind of metric it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only rises, from the start of the process on.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Times by how long they were.
    Histogram,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A page that is written metric by metric.
#[derive(Debug)]
pub struct Page {
    text: String,
    /// Labels that every line has, written out.
    common: String,
    name: String,
}

impl Page {
    /// An empty page, whose lines all have these labels.
    pub fn new(common: &[(&str, &str)]) -> Page {
        let mut labels = String::new();
        put_labels(&mut labels, common);
        Page { text: String::new(), common: labels, name: String::new() }
    }

    /// Begins a metric. Its lines follow.
    pub fn metric(&mut self, name: &str, kind: Kind, help: &str) -> &mut Page {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {}", kind.word());
        name.clone_into(&mut self.name);
        self
    }

    /// A line of the metric.
    pub fn value(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Page {
        let name = std::mem::take(&mut self.name);
        self.line(&name, labels, value);
        self.name = name;
        self
    }

    /// The same of a whole number.
    pub fn count(&mut self, labels: &[(&str, &str)], value: u64) -> &mut Page {
        let name = std::mem::take(&mut self.name);
        self.line(&name, labels, value);
        self.name = name;
        self
    }

    /// The lines of a histogram.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) -> &mut Page {
        let (bucket, sum, count) =
            (format!("{}_bucket", self.name), format!("{}_sum", self.name), format!("{}_count", self.name));
        let mut all = 0;
        for (bound, times) in histogram.cumulative() {
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.line(&bucket, &labels, times);
            all = times;
        }
        self.line(&sum, labels, histogram.sum_s());
        self.line(&count, labels, all);
        self
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let mut all = self.common.clone();
        put_labels(&mut all, labels);
        let _ = match all.is_empty() {
            true => writeln!(self.text, "{name} {value}"),
            false => writeln!(self.text, "{name}{{{all}}} {value}"),
        };
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }
}

fn put_labels(to: &mut String, labels: &[(&str, &str)]) {
    for (name, value) in labels {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let comma = if to.is_empty() { "" } else { "," };
        let _ = write!(to, "{comma}{name}=\"{value}\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_heads_labels_and_values() {
        let mut page = Page::new(&[("server", "io0")]);
        page.metric("weft_a_total", Kind::Counter, "First\nline.").count(&[("op", "read")], 7).count(&[], 8);
        page.metric("weft_b", Kind::Gauge, "A \\ b.").value(&[("x", "a\"b\\c\nd")], 1.5);
        assert_eq!(
            page.into_text(),
            "# HELP weft_a_total First\\nline.\n# TYPE weft_a_total counter\n\
             weft_a_total{server=\"io0\",op=\"read\"} 7\nweft_a_total{server=\"io0\"} 8\n\
             # HELP weft_b A \\\\ b.\n# TYPE weft_b gauge\nweft_b{server=\"io0\",x=\"a\\\"b\\\\c\\nd\"} 1.5\n"
        );
        let mut page = Page::new(&[]);
        page.metric("weft_c", Kind::Gauge, "C.").count(&[], 1 << 60);
        assert!(page.into_text().ends_with("weft_c 1152921504606846976\n"));
    }

    #[test]
    fn a_histogram_has_buckets_a_sum_and_a_count() {
        let (mut page, histogram) = (Page::new(&[]), Histogram::default());
        histogram.note(std::time::Duration::from_micros(10));
        page.metric("weft_t_seconds", Kind::Histogram, "T.").histogram(&[("op", "x")], &histogram);
        let text = page.into_text();
        assert!(text.contains("weft_t_seconds_bucket{op=\"x\",le=\"0.000008192\"} 0\n"), "{text}");
        assert!(text.contains("weft_t_seconds_bucket{op=\"x\",le=\"0.000016384\"} 1\n"), "{text}");
        assert!(text.contains("weft_t_seconds_bucket{op=\"x\",le=\"+Inf\"} 1\n"), "{text}");
        assert!(
            text.contains("weft_t_seconds_sum{op=\"x\"} 0.00001\nweft_t_seconds_count{op=\"x\"} 1\n"),
            "{text}"
        );
    }
}
