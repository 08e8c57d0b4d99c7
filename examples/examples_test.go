// Package examples tests the examples that are one file each.
package examples

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// programs are the examples, and what each prints with any number of ranks.
var programs = map[string]string{
	"cg":           "212 steps, |x|² = 0x1.bbfede78b38b8p+13\n",
	"masterworker": "78498 primes\n",
	"heat":         "heat.png\n",
	"map":          "0 EACH\n1 WORD\n2 GOES\n3 TO\n4 THE\n5 NEXT\n6 WORKER\n7 THAT\n8 ASKS\n9 EACH\n",
	"onesided":     "rank 0 has \"from rank ",
	"pingpong":     "ranks 0 and ",
	"torus":        " nodes, 8192 sites\n",
	"transpose":    "row 0: [0 4 8 12",
}

// lines bounds the lines of code of the examples that show how short a program is.
var lines = map[string]int{"pingpong": 25, "map": 25, "heat": 60}

// All run as 1, 2 and 4 ranks, have at most 100 lines, and begin with what to look at.
func TestExamples(t *testing.T) {
	bin := t.TempDir()
	build := []string{"build", "-o", bin}
	for name := range programs {
		build = append(build, "./"+name)
	}
	out, err := exec.Command("go", build...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, says := range programs {
		t.Run(name, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(name, "main.go"))
			require.NoError(t, err)
			require.LessOrEqual(t, bytes.Count(source, []byte("\n")), 100)
			code := regexp.MustCompile(`(?m)^\s*(//.*)?\n`).ReplaceAll(source, nil)
			if most := lines[name]; most > 0 {
				require.LessOrEqual(t, bytes.Count(code, []byte("\n")), most, "lines of code")
			}
			require.Contains(t, string(source[:bytes.Index(source, []byte("package main"))]), "Look at: ")
			for _, size := range []int{1, 2, 4} {
				if name == "transpose" && size > 1 {
					says = "row 0: [0 "
				}
				require.Contains(t, run(t, filepath.Join(bin, name), size), says, "%d ranks", size)
			}
		})
	}
}

// run returns what a program prints, and checks the picture that it draws, if it is heat.
func run(t *testing.T, program string, size int) string {
	ctx, cancel := context.WithTimeout(t.Context(), ranks.Limit)
	defer cancel()
	dir := t.TempDir()
	var stdout, stderr logbuf.Buffer
	r, err := launch.Run(ctx, launch.Options{
		Size: size, Args: []string{program}, Dir: dir, Stdout: &stdout, Stderr: &stderr, Oversubscribe: true,
	})
	require.NoError(t, err, stderr.String())
	require.Zero(t, r.ExitStatus(), "%s%s", stdout.String(), stderr.String())
	pictures, err := filepath.Glob(filepath.Join(dir, "*.png"))
	require.NoError(t, err)
	for _, name := range pictures {
		f, err := os.Open(name)
		require.NoError(t, err)
		picture, err := png.Decode(f)
		require.NoError(t, errors.Join(err, f.Close()))
		at, tile := picture.Bounds(), 128
		require.Zero(t, at.Dx()%tile+at.Dy()%tile, "%v", at)
		require.Equal(t, size, at.Dx()/tile*(at.Dy()/tile), "a tile of each rank: %v", at)
		middle, _, _, _ := picture.At(tile/2, tile/2).RGBA()
		corner, _, _, _ := picture.At(0, 0).RGBA()
		require.Greater(t, middle, corner, "the source is in the middle of a tile")
	}
	require.Equal(t, filepath.Base(program) == "heat", len(pictures) == 1, "%q", pictures)
	return stdout.String()
}
