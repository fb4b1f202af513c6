//! What Prometheus would scrape.

/// The sum of the samples of this metric that have all these labels.
pub fn sum_of(scraped: &str, metric: &str, labels: &[(&str, &str)]) -> f64 {
    let labels: Vec<_> = (labels.iter().map(|(label, value)| format!("{label}=\"{value}\""))).collect();
    let samples = scraped.lines().filter_map(|line| line.rsplit_once(' '));
    let samples = samples.filter(|(sample, _)| {
        let (name, of) = sample.split_once('{').unwrap_or((sample, ""));
        name == metric && labels.iter().all(|label| of.contains(label))
    });
    samples.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
}
