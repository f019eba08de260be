//! Charts as self-contained SVG: panels of bars or lines over the same categories, with axes, units and a legend; readable on light
//! and dark ground.
//!
//! ```text
//!   title                              Bars: from 0, side by side in each category
//!   legend                             Lines: logarithmic, one point in each category
//!   +--------+  +--------+
//!   | panel  |  | panel  |   two in a row
//!   +--------+  +--------+
//! ```

use std::fmt::Write;

const WIDTH: f64 = 1080.0;
const PANEL_HEIGHT: f64 = 270.0;
const MARGIN: f64 = 20.0;
/// Room left of a panel for the numbers of its axis, and below it for the categories.
const AXIS_WIDTH: f64 = 52.0;
const CATEGORY_HEIGHT: f64 = 34.0;
const PANEL_TITLE_HEIGHT: f64 = 30.0;
const LEGEND_LINE_HEIGHT: f64 = 20.0;
/// Of a character of 12 pixels, about; to place what follows a text.
const CHARACTER_WIDTH: f64 = 6.6;

/// Colours that people with any colour vision tell apart (Okabe and Ito), after the grey of what the others are compared with.
const COLORS: [&str; 8] =
    ["#8c8c8c", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#b8ad1c", "#0072b2"];

/// A picture.
#[derive(Debug, Clone)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// How that was measured.
    pub subtitle: String,
    /// Of all values.
    pub unit: String,
    /// How values are drawn.
    pub marks: Marks,
    /// The panels, two in a row.
    pub panels: Vec<Panel>,
}

/// How values are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Lengths, from 0.
    Bars,
    /// Points joined by lines, on a logarithmic axis.
    Lines,
}

/// A part of a picture.
#[derive(Debug, Clone)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// Names below the axis.
    pub categories: Vec<String>,
    /// What is compared. Series of the same name have the same colour in all panels.
    pub series: Vec<Series>,
}

/// A value, or none, for each category.
#[derive(Debug, Clone)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// In the chart's unit.
    pub values: Vec<Option<f64>>,
    /// Drawn as a line across: what the others are measured against.
    pub is_reference: bool,
}

/// A panel's place.
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    scale: Scale,
}

/// From values to heights, 0 to 1.
struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
    ticks: Vec<f64>,
}

impl Chart {
    /// The picture as a file.
    pub fn svg(&self) -> String {
        let names = self.names();
        let (legend, legend_height) = self.legend(&names);
        let panels_top = MARGIN + 44.0 + legend_height + 8.0;
        let columns = self.panels.len().clamp(1, 2);
        let rows = self.panels.len().div_ceil(columns);
        let height = panels_top + rows as f64 * PANEL_HEIGHT + MARGIN;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             role=\"img\">\n<title>{}</title>\n{STYLE}\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n",
            escaped(&self.title)
        );
        text(&mut svg, [MARGIN, MARGIN + 14.0], "title", &self.title);
        text(&mut svg, [MARGIN, MARGIN + 34.0], "quiet", &self.subtitle);
        svg.push_str(&legend);
        let width = (WIDTH - MARGIN) / columns as f64 - MARGIN;
        for (index, panel) in self.panels.iter().enumerate() {
            let left = MARGIN + (index % columns) as f64 * (width + MARGIN);
            let top = panels_top + (index / columns) as f64 * PANEL_HEIGHT;
            let frame = Frame {
                left: left + AXIS_WIDTH,
                top: top + PANEL_TITLE_HEIGHT,
                width: width - AXIS_WIDTH,
                height: PANEL_HEIGHT - PANEL_TITLE_HEIGHT - CATEGORY_HEIGHT - 10.0,
                scale: Scale::of(panel, self.marks),
            };
            text(&mut svg, [left, top + 16.0], "heading", &format!("{}, {}", panel.title, self.unit));
            frame.draw_axes(&mut svg, &panel.categories);
            match self.marks {
                Marks::Bars => frame.draw_bars(&mut svg, panel, &names, &self.unit),
                Marks::Lines => frame.draw_lines(&mut svg, panel, &names, &self.unit),
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Names of series with whether they are references, each once, in the order in which they come.
    fn names(&self) -> Vec<(String, bool)> {
        let mut names: Vec<(String, bool)> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.iter().any(|(name, _)| *name == series.name) {
                names.push((series.name.clone(), series.is_reference));
            }
        }
        names
    }

    fn legend(&self, names: &[(String, bool)]) -> (String, f64) {
        let mut legend = String::new();
        let (mut x, mut y) = (MARGIN, MARGIN + 58.0);
        for (name, is_reference) in names {
            let width = 30.0 + name.chars().count() as f64 * CHARACTER_WIDTH;
            if x + width > WIDTH - MARGIN && x > MARGIN {
                (x, y) = (MARGIN, y + LEGEND_LINE_HEIGHT);
            }
            if *is_reference {
                let middle = y - 4.0;
                _ = writeln!(legend, "<path class=\"reference\" d=\"M{x:.1} {middle:.1}H{:.1}\"/>", x + 14.0);
            } else {
                let color = color_of(name, names);
                _ = writeln!(
                    legend,
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" height=\"10\" fill=\"{color}\"/>",
                    y - 9.0
                );
            }
            text(&mut legend, [x + 19.0, y], "label", name);
            x += width + 8.0;
        }
        (legend, y - MARGIN - 44.0)
    }
}

impl Scale {
    fn of(panel: &Panel, marks: Marks) -> Scale {
        let values = panel.series.iter().flat_map(|series| series.values.iter().flatten().copied());
        let positive: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
        let most = positive.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let least = positive.iter().copied().fold(most, f64::min);
        if positive.is_empty() {
            return Scale { low: 0.0, high: 1.0, is_log: false, ticks: vec![0.0, 1.0] };
        }
        match marks {
            Marks::Bars => {
                let step = round_step(most / 5.0);
                let count = (most / step).ceil() as usize;
                let ticks: Vec<f64> = (0..=count).map(|index| index as f64 * step).collect();
                Scale { low: 0.0, high: count as f64 * step, is_log: false, ticks }
            }
            Marks::Lines => {
                let decades = least.log10().floor() as i32..=most.log10().floor() as i32;
                let marks =
                    decades.flat_map(|decade| [1.0, 2.0, 5.0, 10.0].map(|mark| mark * 10f64.powi(decade)));
                let mut marks: Vec<f64> = marks.collect();
                marks.dedup();
                let low = marks.iter().copied().filter(|mark| *mark <= least).fold(0.0, f64::max);
                let high = marks.iter().copied().filter(|mark| *mark >= most).fold(f64::MAX, f64::min);
                let high = if high > low { high } else { 10.0 * low };
                let ticks = marks.into_iter().filter(|mark| (low..=high).contains(mark)).collect();
                Scale { low, high, is_log: true, ticks }
            }
        }
    }

    fn height(&self, value: f64) -> f64 {
        let part = if self.is_log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        part.clamp(0.0, 1.0)
    }
}

/// The next of 1, 2, 5, 10, 20, … from `least` on.
fn round_step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|step| step * decade).into_iter().find(|step| *step >= least).unwrap_or(10.0 * decade)
}

impl Frame {
    fn y(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - self.scale.height(value))
    }

    /// Left end and width of a category's room.
    fn slot(&self, index: usize, count: usize) -> (f64, f64) {
        let width = self.width / count.max(1) as f64;
        (self.left + index as f64 * width, width)
    }

    fn draw_axes(&self, svg: &mut String, categories: &[String]) {
        let right = self.left + self.width;
        for tick in &self.scale.ticks {
            let y = self.y(*tick);
            _ = writeln!(svg, "<path class=\"grid\" d=\"M{:.1} {y:.1}H{right:.1}\"/>", self.left);
            text(svg, [self.left - 6.0, y + 4.0], "tick", &tick_text(*tick));
        }
        let bottom = self.top + self.height;
        _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{:.1} {:.1}V{bottom:.1}H{right:.1}\"/>",
            self.left, self.top
        );
        for (index, category) in categories.iter().enumerate() {
            let (left, width) = self.slot(index, categories.len());
            for (line, part) in wrapped(category, (width / CHARACTER_WIDTH) as usize).iter().enumerate() {
                let y = bottom + 16.0 + 13.0 * line as f64;
                text(svg, [left + width / 2.0, y], "category", part);
            }
        }
    }

    fn draw_bars(&self, svg: &mut String, panel: &Panel, names: &[(String, bool)], unit: &str) {
        let bars: Vec<_> = panel.series.iter().filter(|series| !series.is_reference).collect();
        for (index, category) in panel.categories.iter().enumerate() {
            let (left, room) = self.slot(index, panel.categories.len());
            let bar = room * 0.84 / bars.len().max(1) as f64;
            for (place, series) in bars.iter().enumerate() {
                let Some(value) = value_of(series, index) else { continue };
                let (x, y) = (left + room * 0.08 + place as f64 * bar, self.y(value));
                let color = color_of(&series.name, names);
                _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\">{}</rect>",
                    bar * 0.92,
                    self.top + self.height - y,
                    hint(&series.name, category, value, unit),
                );
            }
            for series in panel.series.iter().filter(|series| series.is_reference) {
                let Some(value) = value_of(series, index) else { continue };
                let y = self.y(value);
                _ = writeln!(
                    svg,
                    "<path class=\"reference\" d=\"M{:.1} {y:.1}H{:.1}\">{}</path>",
                    left + room * 0.04,
                    left + room * 0.96,
                    hint(&series.name, category, value, unit),
                );
            }
        }
    }

    fn draw_lines(&self, svg: &mut String, panel: &Panel, names: &[(String, bool)], unit: &str) {
        for series in &panel.series {
            let points: Vec<_> = panel
                .categories
                .iter()
                .enumerate()
                .filter_map(|(index, category)| {
                    let (left, room) = self.slot(index, panel.categories.len());
                    value_of(series, index).map(|value| (left + room / 2.0, value, category))
                })
                .collect();
            let path: Vec<_> =
                points.iter().map(|(x, value, _)| format!("{x:.1} {:.1}", self.y(*value))).collect();
            if path.is_empty() {
                continue;
            }
            let path = path.join("L");
            if series.is_reference {
                _ = writeln!(svg, "<path class=\"reference\" d=\"M{path}\"/>");
                continue;
            }
            let color = color_of(&series.name, names);
            _ = writeln!(svg, "<path class=\"line\" stroke=\"{color}\" d=\"M{path}\"/>");
            for (x, value, category) in points {
                _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{color}\">{}</circle>",
                    self.y(value),
                    hint(&series.name, category, value, unit),
                );
            }
        }
    }
}

fn value_of(series: &Series, index: usize) -> Option<f64> {
    series.values.get(index).copied().flatten().filter(|value| value.is_finite() && *value > 0.0)
}

fn color_of(name: &str, names: &[(String, bool)]) -> &'static str {
    let place = names.iter().filter(|(_, is_reference)| !is_reference).position(|(other, _)| other == name);
    COLORS[place.unwrap_or(0) % COLORS.len()]
}

/// What a browser shows when it is pointed at.
fn hint(series: &str, category: &str, value: f64, unit: &str) -> String {
    format!(
        "<title>{}</title>",
        escaped(&format!("{series}, {category}: {} {unit}", super::report::number(value)))
    )
}

fn tick_text(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 1.0 || value == 0.0 => format!("{value}"),
        value => format!("{value:.3}").trim_end_matches('0').to_string(),
    }
}

/// A text in at most two lines of about this many characters.
fn wrapped(text: &str, characters: usize) -> Vec<String> {
    if text.chars().count() <= characters {
        return vec![text.to_string()];
    }
    match text.split_once(", ") {
        Some((first, second)) => vec![format!("{first},"), second.to_string()],
        None => vec![text.to_string()],
    }
}

fn text(svg: &mut String, at: [f64; 2], class: &str, content: &str) {
    _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" class=\"{class}\">{}</text>",
        at[0],
        at[1],
        escaped(content)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Colours for light ground first, so that a program that does not know which ground it draws on shows these.
const STYLE: &str = "<style>
text { font: 12px system-ui, sans-serif; fill: #1d1d1f }
.title { font-size: 17px; font-weight: 600 } .heading { font-weight: 600 }
.quiet, .tick, .category { fill: #5c5c61 } .tick { text-anchor: end; font-size: 11px }
.category { text-anchor: middle; font-size: 11px }
.ground { fill: #ffffff } .grid { stroke: #e2e2e6 } .axis { stroke: #5c5c61; fill: none }
.line { fill: none; stroke-width: 2 }
.reference { stroke: #1d1d1f; stroke-width: 1.5; stroke-dasharray: 5 3; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #ececf0 } .quiet, .tick, .category { fill: #a2a2aa }
.ground { fill: #17181b } .grid { stroke: #34353b } .axis { stroke: #a2a2aa } .reference { stroke: #ececf0 }
}
</style>";

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(marks: Marks) -> Chart {
        let series = |name: &str, values: &[Option<f64>], is_reference| Series {
            name: name.to_string(),
            values: values.to_vec(),
            is_reference,
        };
        let panel = |title: &str| Panel {
            title: title.to_string(),
            categories: vec![
                "a < b & c".to_string(),
                "24 B, noncontiguous in memory and in the file".to_string(),
            ],
            series: vec![
                series("one \"I/O\"", &[Some(10.0), Some(2345.0)], false),
                series("two", &[None, Some(f64::NAN)], false),
                series("tmpfs", &[Some(900.0), Some(3000.0)], true),
            ],
        };
        Chart {
            title: "T".into(),
            subtitle: "S".into(),
            unit: "MiB/s".into(),
            marks,
            panels: vec![panel("left"), panel("right"), panel("below")],
        }
    }

    /// Tags opened and closed in turn, one root, no bare `&` or `<` in text.
    fn assert_well_formed(xml: &str) {
        let mut open = Vec::new();
        for part in xml.trim().split('<').skip(1) {
            let (tag, content) = part.split_once('>').expect("every tag ends");
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name.to_string()), "{part}"),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split(' ').next().unwrap_or_default().to_string()),
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            for entity in content.split('&').skip(1) {
                assert!(
                    ["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)),
                    "{content}"
                );
            }
            assert!(!open.is_empty() || content.is_empty(), "{content} after the root");
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn charts_are_well_formed_and_have_their_marks() {
        let bars = chart(Marks::Bars).svg();
        assert_well_formed(&bars);
        assert_eq!(bars.matches("<title>one &quot;I/O&quot;, ").count(), 2 * 3);
        assert_eq!(bars.matches("class=\"reference\"").count(), 1 + 2 * 3);
        let lines = chart(Marks::Lines).svg();
        assert_well_formed(&lines);
        assert_eq!(lines.matches("<circle").count(), 2 * 3);
        assert!(!bars.contains("NaN") && !lines.contains("NaN") && !lines.contains("inf"));
        assert_well_formed(&Chart { panels: Vec::new(), ..chart(Marks::Bars) }.svg());
    }

    #[test]
    fn axes_are_round_and_hold_every_value() {
        let scale = Scale::of(&chart(Marks::Bars).panels[0], Marks::Bars);
        assert_eq!((scale.low, scale.high), (0.0, 3000.0));
        assert_eq!(scale.ticks, [0.0, 1000.0, 2000.0, 3000.0]);
        let scale = Scale::of(&chart(Marks::Lines).panels[0], Marks::Lines);
        assert_eq!(scale.ticks, [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0]);
        assert_eq!((scale.height(10.0), scale.height(5000.0)), (0.0, 1.0));
        assert_eq!(round_step(0.03), 0.05);
    }
}
