package sluice

import (
	"bytes"
	"errors"
	"flag"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write api.txt, which says what the packages export")

// TestSurface: api.txt has what the packages export on Linux, so that no change of it is an
// accident.
func TestSurface(t *testing.T) {
	var got []string
	require.NoError(t, filepath.WalkDir(".", func(dir string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		_, module := os.Stat(filepath.Join(dir, "go.mod"))
		if dir != "." && (module == nil && dir != filepath.Join("fanout", "metrics") || slices.Contains([]string{"internal", "testdata", "examples"}, d.Name()) || d.Name()[0] == '.') {
			return filepath.SkipDir
		}
		lines, err := surface(dir)
		got = append(got, lines...)
		return err
	}))
	// The types of internal packages that these name.
	named := regexp.MustCompile(`\b(reduce|collop)\.([A-Z]\w*)`)
	for _, m := range named.FindAllStringSubmatch(strings.Join(got, "\n"), -1) {
		lines, err := surface(filepath.Join("internal", m[1]))
		require.NoError(t, err)
		its := regexp.MustCompile(`: (type ` + m[2] + `\b|func \((\w+ )?\*?` + m[2] + `[)\[])`)
		for _, line := range lines {
			if its.MatchString(line) && !slices.Contains(got, line) {
				got = append(got, line)
			}
		}
	}
	slices.Sort(got)
	text := strings.Join(got, "\n") + "\n"
	if *update {
		require.NoError(t, os.WriteFile("api.txt", []byte(text), 0o644))
	}
	b, err := os.ReadFile("api.txt")
	require.NoError(t, err)
	want := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("gone: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("new: %s", line)
		}
	}
	if t.Failed() {
		t.Log("If this is meant: go test -run TestSurface . -update, and a line in CHANGELOG.md.")
	}
}

// surface returns the exported declarations of a package, one a line.
func surface(dir string) (lines []string, err error) {
	context := build.Default
	context.GOOS, context.GOARCH, context.CgoEnabled = "linux", "amd64", true
	p, err := context.ImportDir(dir, 0)
	if none := (*build.NoGoError)(nil); errors.As(err, &none) || err == nil && p.Name == "main" {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	add := func(before string, node any) error {
		var b bytes.Buffer
		if err := (&printer.Config{Mode: printer.RawFormat}).Fprint(&b, files, node); err != nil {
			return err
		}
		var words []string
		for line := range strings.Lines(b.String()) {
			words = append(words, strings.Join(strings.Fields(line), " "))
		}
		text := strings.ReplaceAll(strings.ReplaceAll(strings.Join(words, "; "), "{; ", "{ "), "; }", " }")
		lines = append(lines, filepath.ToSlash(dir)+": "+before+text)
		return nil
	}
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		file, err := parser.ParseFile(files, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		unions := map[*ast.InterfaceType][]*ast.Field{} // FileExports drops those of int and the like
		ast.Inspect(file, func(n ast.Node) bool {
			if it, ok := n.(*ast.InterfaceType); ok {
				for _, f := range it.Methods.List {
					if _, ok := f.Type.(*ast.BinaryExpr); ok {
						unions[it] = append(unions[it], f)
					}
				}
			}
			return true
		})
		ast.FileExports(file)
		for it, list := range unions {
			it.Methods.List, it.Incomplete = list, false
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if names := declared(d); len(names) == 1 && ast.IsExported(names[0]) { // its receiver
					d.Body = nil
					err = errors.Join(err, add("", d))
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR {
						v.Values = nil
					}
					if d.Tok != token.IMPORT {
						err = errors.Join(err, add(d.Tok.String()+" ", spec))
					}
				}
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}
