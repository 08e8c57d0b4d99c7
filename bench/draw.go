package main

import (
	"encoding/hex"
	"fmt"
	"html"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"strings"
)

// drawing is a picture that is written as SVG, into a page as well, or as PNG.
type drawing struct {
	title         string
	width, height float64
	shapes        []shape
}

// shape is a line of several points, a dot, or text.
type shape struct {
	kind   string // line, dot, text
	class  string // of SVG
	series string // that it belongs to
	tip    string // under the pointer
	points []xy
	colour color.RGBA
	width  float64 // of a line; the radius of a dot
	dash   float64 // 0: none
	text   string
	anchor string // of text: start, middle, end
}

type xy struct{ x, y float64 }

// colours is the palette of Okabe and Ito, which is safe for colour-blind readers.
var colours = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x8a, 0x6d, 0x00, 0xff}, {0x7f, 0x7f, 0x7f, 0xff},
}

func colourOf(series int) color.RGBA { return colours[series%len(colours)] }

func cssOf(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

var (
	black = color.RGBA{0x22, 0x22, 0x22, 0xff}
	pale  = color.RGBA{0xdd, 0xdd, 0xdd, 0xff}
)

const fontSize = 12

func (d *drawing) line(class string, from, to xy) {
	colour := pale
	if class != "grid" {
		colour = black
	}
	d.shapes = append(d.shapes, shape{kind: "line", class: class, points: []xy{from, to}, colour: colour, width: 1})
}

func (d *drawing) write(at xy, anchor, text string) {
	d.shapes = append(d.shapes, shape{kind: "text", points: []xy{at}, anchor: anchor, text: text, colour: black})
}

// svg writes it as SVG. Style sheets of a page may change its colours.
func (d *drawing) svg(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img" aria-label="%s" font-family="sans-serif" font-size="%d">`,
		d.width, d.height, html.EscapeString(d.title), fontSize)
	for i := range d.shapes {
		s := &d.shapes[i]
		also := ""
		for _, a := range [][2]string{{"class", s.class}, {"data-series", s.series}, {"data-tip", s.tip}} {
			if a[1] != "" {
				also += fmt.Sprintf(` %s="%s"`, a[0], html.EscapeString(a[1]))
			}
		}
		colour := cssOf(s.colour)
		p := s.points[0]
		switch s.kind {
		case "line":
			var list []string
			for _, p := range s.points {
				list = append(list, fmt.Sprintf("%.1f,%.1f", p.x, p.y))
			}
			if s.dash > 0 {
				also += fmt.Sprintf(` stroke-dasharray="%g"`, s.dash)
			}
			fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%g"%s/>`, strings.Join(list, " "), colour, s.width, also)
		case "dot":
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="%g" fill="%s"%s/>`, p.x, p.y, s.width, colour, also)
		case "text":
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s"%s>%s</text>`, p.x, p.y, s.anchor, colour, also, html.EscapeString(s.text))
		}
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// pngScale is how many pixels a point of a drawing is, glyphUnit how many the dots of a glyph
// are apart.
const (
	pngScale  = 2
	glyphUnit = 2.2
)

// png writes it as PNG, on white.
func (d *drawing) png(w io.Writer) error {
	p := image.NewRGBA(image.Rect(0, 0, int(d.width*pngScale), int(d.height*pngScale)))
	draw.Draw(p, p.Bounds(), image.White, image.Point{}, draw.Src)
	for i := range d.shapes {
		s := &d.shapes[i]
		pen := func(a, b xy, width float64) {
			stroke(p, s.colour, xy{a.x * pngScale, a.y * pngScale}, xy{b.x * pngScale, b.y * pngScale}, width*pngScale/2)
		}
		switch s.kind {
		case "line":
			s.dashes(func(a, b xy) { pen(a, b, s.width) })
		case "dot":
			pen(s.points[0], s.points[0], 2*s.width)
		case "text":
			text := []rune(s.text)
			at := xy{s.points[0].x * pngScale, s.points[0].y*pngScale - 6*glyphUnit}
			at.x -= float64(len(text)) * 6 * glyphUnit * map[string]float64{"middle": 0.5, "end": 1}[s.anchor]
			for _, r := range text {
				glyph(r, func(a, b xy) {
					stroke(p, s.colour, xy{at.x + a.x*glyphUnit, at.y + a.y*glyphUnit}, xy{at.x + b.x*glyphUnit, at.y + b.y*glyphUnit}, 1)
				})
				at.x += 6 * glyphUnit
			}
		}
	}
	return png.Encode(w, p)
}

func (s *shape) dashes(each func(a, b xy)) {
	for i := range s.points[1:] {
		a, b := s.points[i], s.points[i+1]
		long := math.Hypot(b.x-a.x, b.y-a.y)
		dash := s.dash
		if dash == 0 {
			dash = long
		}
		for from := 0.; from < long; from += 2 * dash {
			to := min(from+dash, long) / long
			each(xy{a.x + (b.x-a.x)*from/long, a.y + (b.y-a.y)*from/long}, xy{a.x + (b.x-a.x)*to, a.y + (b.y-a.y)*to})
		}
	}
}

// stroke draws a line with round ends: each pixel is covered by how near it is.
func stroke(p *image.RGBA, colour color.RGBA, a, b xy, radius float64) {
	long := (b.x-a.x)*(b.x-a.x) + (b.y-a.y)*(b.y-a.y)
	box := image.Rect(int(min(a.x, b.x)-radius)-1, int(min(a.y, b.y)-radius)-1, int(max(a.x, b.x)+radius)+2, int(max(a.y, b.y)+radius)+2).Intersect(p.Bounds())
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			at, along := xy{float64(x) + 0.5, float64(y) + 0.5}, 0.
			if long > 0 {
				along = min(1, max(0, ((at.x-a.x)*(b.x-a.x)+(at.y-a.y)*(b.y-a.y))/long))
			}
			covered := min(1, radius+0.5-math.Hypot(at.x-a.x-along*(b.x-a.x), at.y-a.y-along*(b.y-a.y)))
			if covered <= 0 {
				continue
			}
			was := p.RGBAAt(x, y)
			mix := func(old, ink uint8) uint8 { return uint8(float64(old) + covered*(float64(ink)-float64(old))) }
			p.SetRGBA(x, y, color.RGBA{mix(was.R, colour.R), mix(was.G, colour.G), mix(was.B, colour.B), 0xff})
		}
	}
}

// glyphs are characters of 5×7 dots from space to ~, as displays have them: a byte for each
// column, the top in its lowest bit.
const glyphs = "0000000000" + "00005f0000" + "0007000700" + "147f147f14" + "242a7f2a12" + "2313086462" + "3649562050" + "0008070300" +
	"001c224100" + "0041221c00" + "2a1c7f1c2a" + "08083e0808" + "0080703000" + "0808080808" + "0000606000" + "2010080402" +
	"3e5149453e" + "00427f4000" + "7249494946" + "2141494d33" + "1814127f10" + "2745454539" + "3c4a494931" + "4121110907" +
	"3649494936" + "464949291e" + "0000360000" + "0040340000" + "0008142241" + "1414141414" + "0041221408" + "0201590906" +
	"3e415d594e" + "7c1211127c" + "7f49494936" + "3e41414122" + "7f4141413e" + "7f49494941" + "7f09090901" + "3e41415173" +
	"7f0808087f" + "00417f4100" + "2040413f01" + "7f08142241" + "7f40404040" + "7f021c027f" + "7f0408107f" + "3e4141413e" +
	"7f09090906" + "3e4151215e" + "7f09192946" + "2649494932" + "03017f0103" + "3f4040403f" + "1f2040201f" + "3f4038403f" +
	"6314081463" + "0304780403" + "6159494d43" + "007f414141" + "0204081020" + "004141417f" + "0402010204" + "4040404040" +
	"0003070800" + "2054547840" + "7f28444438" + "3844444428" + "384444287f" + "3854545418" + "00087e0902" + "18a4a49c78" +
	"7f08040478" + "00447d4000" + "2040403d00" + "7f10284400" + "00417f4000" + "7c04780478" + "7c08040478" + "3844444438" +
	"fc18242418" + "18242418fc" + "7c08040408" + "4854545424" + "04043f4424" + "3c4040207c" + "1c2040201c" + "3c4030403c" +
	"4428102844" + "4c9090907c" + "4464544c44" + "0008364100" + "0000770000" + "0041360800" + "0201020402"

// glyph draws a character as the lines between neighbouring dots.
func glyph(r rune, line func(a, b xy)) {
	switch {
	case r == 'µ':
		r = 'u'
	case r == '×':
		r = 'x'
	case r < ' ' || r > '~':
		r = '?'
	}
	dots, err := hex.DecodeString(glyphs[(r-' ')*10:][:10])
	if err != nil {
		panic(err) // it is ours
	}
	set := func(x, y int) bool { return x >= 0 && x < 5 && y < 8 && dots[x]>>y&1 == 1 }
	for x := range 5 {
		for y := range 8 {
			if !set(x, y) {
				continue
			}
			at := xy{float64(x), float64(y)}
			line(at, at)
			for _, n := range [][2]int{{1, 0}, {0, 1}, {1, 1}, {-1, 1}} {
				straight := n[0] == 0 || n[1] == 0
				if set(x+n[0], y+n[1]) && (straight || !set(x+n[0], y) && !set(x, y+n[1])) {
					line(at, xy{at.x + float64(n[0]), at.y + float64(n[1])})
				}
			}
		}
	}
}
