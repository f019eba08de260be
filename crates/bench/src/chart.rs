//! Draws charts as SVG with plotters: panels of bars or lines over the same categories, with axes, units and
//! a legend.
//!
//! ```text
//!   title                              Bars: from 0, side by side in each category
//!   legend                             Lines: logarithmic, one point in each category
//!   +--------+  +--------+
//!   | panel  |  | panel  |   two in a row
//!   +--------+  +--------+
//! ```

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

const WIDTH: u32 = 1080;
const PANEL_HEIGHT: u32 = 270;
const MARGIN: u32 = 20;
const TITLE_HEIGHT: u32 = 44;
/// Space left of a panel for its unit and the numbers of its axis, and below it for the categories.
const AXIS_WIDTH: u32 = 64;
const CATEGORY_HEIGHT: u32 = 34;
const LEGEND_LINE_HEIGHT: u32 = 20;
/// Approximate width of a character of [`TEXT`] pixels, to place what follows a text.
const CHARACTER_WIDTH: f64 = 6.6;

/// Sizes of texts in plotters' units: 1.24 for each pixel of the letters.
const TITLE: f64 = 1.24 * 17.0;
const TEXT: f64 = 1.24 * 12.0;
const SMALL: f64 = 1.24 * 11.0;
const FONT: &str = "sans-serif";

/// Colours that are distinct for people with any colour vision (Okabe and Ito), after the grey of references.
const COLORS: [RGBColor; 8] = [
    RGBColor(0x8c, 0x8c, 0x8c),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xb8, 0xad, 0x1c),
    RGBColor(0x00, 0x72, 0xb2),
];
const INK: RGBColor = RGBColor(0x1d, 0x1d, 0x1f);
const QUIET: RGBColor = RGBColor(0x5c, 0x5c, 0x61);
const GRID: RGBColor = RGBColor(0xe2, 0xe2, 0xe6);

/// A drawing area, in pixels.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A panel's coordinate system: categories from 0 on, each one wide, and values.
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Scale>>;

/// The result of drawing.
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The conditions of the measurement.
    pub subtitle: String,
    /// The unit of all values.
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

/// A part of a chart.
#[derive(Debug, Clone)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// Names below the axis.
    pub categories: Vec<String>,
    /// The series that are compared. Series of the same name have the same colour in all panels.
    pub series: Vec<Series>,
}

/// A series: a value, or none, for each category.
#[derive(Debug, Clone)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The values, in the chart's unit.
    pub values: Vec<Option<f64>>,
    /// Whether it is drawn as a line across the panel: the reference for the others.
    pub is_reference: bool,
}

/// A panel's axis of values.
#[derive(Clone)]
struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
    ticks: Vec<f64>,
}

impl Chart {
    /// The chart as the text of an SVG file.
    pub fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| anyhow!("cannot draw {}: {error}", self.title))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let names = self.names();
        let places = legend_places(&names);
        let legend_lines = places.last().map_or(0, |(_, line)| line + 1);
        let columns = self.panels.len().clamp(1, 2) as u32;
        let rows = (self.panels.len() as u32).div_ceil(columns);
        let panels_top = MARGIN + TITLE_HEIGHT + legend_lines * LEGEND_LINE_HEIGHT + 8;
        let size = (WIDTH, panels_top + rows * PANEL_HEIGHT + MARGIN);
        let root = SVGBackend::with_string(svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let left = MARGIN as i32;
        write(&root, (left, left), &self.title, text(TITLE, &INK))?;
        write(&root, (left, left + 26), &self.subtitle, text(TEXT, &QUIET))?;
        for ((name, is_reference), (x, line)) in names.iter().zip(places) {
            let y = MARGIN + TITLE_HEIGHT + line * LEGEND_LINE_HEIGHT;
            let color = if *is_reference { INK } else { color_of(name, &names) };
            draw_key(&root, (x as i32, y as i32), name, *is_reference, color)?;
        }
        let width = (WIDTH - MARGIN) / columns - MARGIN;
        for (index, panel) in self.panels.iter().enumerate() {
            let (column, row) = (index as u32 % columns, index as u32 / columns);
            let place = (MARGIN + column * (width + MARGIN), panels_top + row * PANEL_HEIGHT);
            let area = root.clone().shrink(place, (width, PANEL_HEIGHT));
            let scale = Scale::of(panel, self.marks);
            self.draw_panel(&area, panel, scale, &names)?;
        }
        Ok(root.present()?)
    }

    fn draw_panel(&self, area: &Area, panel: &Panel, scale: Scale, names: &[(String, bool)]) -> Drawn {
        let categories = panel.categories.len().max(1);
        let mut plane = ChartBuilder::on(area)
            .caption(&panel.title, text(TEXT, &INK))
            .x_label_area_size(CATEGORY_HEIGHT)
            .y_label_area_size(AXIS_WIDTH)
            .build_cartesian_2d(0.0..categories as f64, scale)?;
        plane
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .axis_style(QUIET)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(text(SMALL, &QUIET))
            .y_label_formatter(&|value| tick_text(*value))
            .y_desc(&self.unit)
            .draw()?;
        draw_categories(&plane, area, panel)?;
        match self.marks {
            Marks::Bars => draw_bars(&mut plane, panel, names),
            Marks::Lines => draw_lines(&mut plane, panel, names),
        }
    }

    /// The names of all series, each once, in order, and whether they are references.
    fn names(&self) -> Vec<(String, bool)> {
        let mut names: Vec<(String, bool)> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.iter().any(|(name, _)| *name == series.name) {
                names.push((series.name.clone(), series.is_reference));
            }
        }
        names
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

    /// The height of a value on the axis, from 0 at the bottom to 1.
    fn height(&self, value: f64) -> f64 {
        let part = if self.is_log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        part.clamp(0.0, 1.0)
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (bottom, top): (i32, i32)) -> i32 {
        bottom + (self.height(*value) * f64::from(top - bottom)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// The smallest of 1, 2, 5, 10, 20, … that is at least `least`.
fn round_step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|step| step * decade).into_iter().find(|step| *step >= least).unwrap_or(10.0 * decade)
}

/// The left end and the line of each name of the legend.
fn legend_places(names: &[(String, bool)]) -> Vec<(u32, u32)> {
    let (mut x, mut line) = (MARGIN, 0);
    let mut places = Vec::new();
    for (name, _) in names {
        let width = 30 + (name.chars().count() as f64 * CHARACTER_WIDTH) as u32;
        if x + width > WIDTH - MARGIN && x > MARGIN {
            (x, line) = (MARGIN, line + 1);
        }
        places.push((x, line));
        x += width + 8;
    }
    places
}

/// Draws a name of the legend with its colour.
fn draw_key(root: &Area, at: (i32, i32), name: &str, is_reference: bool, color: RGBColor) -> Drawn {
    let (x, y) = at;
    match is_reference {
        true => root.draw(&reference([(x, y + 8), (x + 14, y + 8)]))?,
        false => root.draw(&Rectangle::new([(x, y + 3), (x + 14, y + 13)], color.filled()))?,
    }
    write(root, (x + 19, y + 2), name, text(TEXT, &INK))
}

/// Draws the names of categories below the axis, each in at most two lines.
fn draw_categories(plane: &Plane<'_, '_>, area: &Area<'_>, panel: &Panel) -> Drawn {
    let style = text(SMALL, &QUIET).pos(Pos::new(HPos::Center, VPos::Top));
    let (across, down) = plane.plotting_area().get_pixel_range();
    let (corner, _) = area.get_pixel_range();
    let width = f64::from(across.end - across.start) / panel.categories.len().max(1) as f64;
    for (index, category) in panel.categories.iter().enumerate() {
        let x = across.start - corner.start + ((index as f64 + 0.5) * width) as i32;
        for (line, part) in wrapped(category, (width / CHARACTER_WIDTH) as usize).iter().enumerate() {
            let y = down.end - area.get_pixel_range().1.start + 6 + 13 * line as i32;
            write(area, (x, y), part, style.clone())?;
        }
    }
    Ok(())
}

fn draw_bars(plane: &mut Plane<'_, '_>, panel: &Panel, names: &[(String, bool)]) -> Drawn {
    let bars: Vec<_> = panel.series.iter().filter(|series| !series.is_reference).collect();
    let width = 0.84 / bars.len().max(1) as f64;
    for index in 0..panel.categories.len() {
        let left = index as f64;
        for (place, series) in bars.iter().enumerate() {
            let Some(value) = value_of(series, index) else { continue };
            let x = left + 0.08 + place as f64 * width;
            let style = color_of(&series.name, names).filled();
            plane.draw_series([Rectangle::new([(x, 0.0), (x + 0.92 * width, value)], style)])?;
        }
        for series in panel.series.iter().filter(|series| series.is_reference) {
            let Some(value) = value_of(series, index) else { continue };
            plane.draw_series([reference([(left + 0.04, value), (left + 0.96, value)])])?;
        }
    }
    Ok(())
}

fn draw_lines(plane: &mut Plane<'_, '_>, panel: &Panel, names: &[(String, bool)]) -> Drawn {
    for series in &panel.series {
        let point = |index: usize| value_of(series, index).map(|value| (index as f64 + 0.5, value));
        let points: Vec<_> = (0..panel.categories.len()).filter_map(point).collect();
        if series.is_reference {
            plane.draw_series([reference(points)])?;
            continue;
        }
        let color = color_of(&series.name, names);
        plane.draw_series([PathElement::new(points.clone(), color.stroke_width(2))])?;
        plane.draw_series(points.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
    }
    Ok(())
}

/// A dashed line.
fn reference<P, I>(points: P) -> DashedPathElement<I, i32>
where
    P: IntoIterator<IntoIter = I>,
    I: Iterator + Clone,
{
    DashedPathElement::new(points, 5, 3, INK.stroke_width(2))
}

fn text(size: f64, color: &'static RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(color)
}

fn write(area: &Area, at: (i32, i32), content: &str, style: TextStyle<'_>) -> Drawn {
    Ok(area.draw(&Text::new(content, at, style))?)
}

fn value_of(series: &Series, index: usize) -> Option<f64> {
    series.values.get(index).copied().flatten().filter(|value| value.is_finite() && *value > 0.0)
}

fn color_of(name: &str, names: &[(String, bool)]) -> RGBColor {
    let place = names.iter().filter(|(_, is_reference)| !is_reference).position(|(other, _)| other == name);
    COLORS[place.unwrap_or(0) % COLORS.len()]
}

fn tick_text(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 1.0 || value == 0.0 => format!("{value}"),
        value => format!("{value:.3}").trim_end_matches('0').to_string(),
    }
}

/// Breaks a text into at most two lines of about this many characters.
fn wrapped(text: &str, characters: usize) -> Vec<String> {
    if text.chars().count() <= characters {
        return vec![text.to_string()];
    }
    match text.split_once(", ") {
        Some((first, second)) => vec![format!("{first},"), second.to_string()],
        None => vec![text.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How each dash of a reference is drawn.
    const DASH: &str = "stroke=\"#1D1D1F\" stroke-width=\"2\"";

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
                    ["amp;", "lt;", "gt;", "quot;", "apos;"].iter().any(|known| entity.starts_with(known)),
                    "{content}"
                );
            }
            assert!(!open.is_empty() || content.is_empty(), "{content} after the root");
        }
        assert!(open.is_empty(), "{open:?}");
    }

    /// The texts of a picture.
    fn texts(svg: &str) -> Vec<&str> {
        let parts = svg.split("<text").skip(1).filter_map(|part| part.split_once('>'));
        parts.filter_map(|(_, content)| Some(content.split_once('<')?.0.trim())).collect()
    }

    #[test]
    fn charts_are_well_formed_and_have_their_marks() {
        let bars = chart(Marks::Bars).svg().unwrap();
        assert_well_formed(&bars);
        // The ground, two keys of the legend, and two bars in each of three panels.
        assert_eq!(bars.matches("<rect").count(), 1 + 2 + 2 * 3);
        assert!(bars.matches(DASH).count() > 2 * 3);
        let lines = chart(Marks::Lines).svg().unwrap();
        assert_well_formed(&lines);
        assert_eq!(lines.matches("<circle").count(), 2 * 3);
        assert!(lines.matches(DASH).count() > 3);
        assert!(!bars.contains("NaN") && !lines.contains("NaN") && !lines.contains("inf"));
        assert_well_formed(&Chart { panels: Vec::new(), ..chart(Marks::Bars) }.svg().unwrap());
    }

    #[test]
    fn a_picture_names_every_series_panel_category_and_unit() {
        for marks in [Marks::Bars, Marks::Lines] {
            let svg = chart(marks).svg().unwrap();
            let texts = texts(&svg);
            for name in ["one &quot;I/O&quot;", "two", "tmpfs"] {
                assert_eq!(texts.iter().filter(|text| **text == name).count(), 1, "{name}: {texts:?}");
            }
            for name in ["MiB/s", "a &lt; b &amp; c", "24 B,", "noncontiguous in memory and in the file"] {
                assert_eq!(texts.iter().filter(|text| **text == name).count(), 3, "{name}: {texts:?}");
            }
            for name in ["T", "S", "left", "right", "below", "1000"] {
                assert!(texts.contains(&name), "{name}: {texts:?}");
            }
        }
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
