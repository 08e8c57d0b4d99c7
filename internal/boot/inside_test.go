package boot_test

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() { boot.Acts["run"] = run }

// run does what "sluice run -n SIZE COMMAND" does, without a program to build.
func run(args []string) int {
	size, err := strconv.Atoi(args[0])
	if err == nil {
		var r launch.Result
		r, err = launch.Run(context.Background(), launch.Options{
			Size: size, Args: args[1:], Env: ranks.Environ("exchange"), Stdout: os.Stdout, Stderr: os.Stderr,
		})
		if err == nil {
			return r.ExitStatus()
		}
	}
	fmt.Println("error:", err)
	return 3
}
